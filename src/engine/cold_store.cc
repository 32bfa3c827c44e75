#include "engine/cold_store.h"

#include <string>

#include "kvant/base/check.h"
#include "kvant/policy/tier_map.h"

namespace kvant::engine {

Result<wire::UpgradeOffer> ColdStore::Offer() const {
  KVANT_CHECK(spectrum_.refine.has_value(), "a store is kept to be asked");
  wire::UpgradeOffer offer;
  for (const codec::TierMap& tiers : tiers_) {
    KVANT_ASSIGN_OR_RETURN(const codec::TierCounts counts,
                           policy::CountsAt(spectrum_, *spectrum_.refine, tiers.counts.total()));
    offer.layers.push_back(counts);
  }
  return offer;
}

Result<Buffer> ColdStore::Answer(uint64_t session, const wire::UpgradeRequest& request, ThreadPool* pool) {
  const std::string where = "upgrade of layer " + std::to_string(request.layer);
  if (request.layout.shape != sequence_.shape()) {
    return Status(StatusCode::kInvalidArgument, where + ": another shape");
  }
  codec::TierMap& from = tiers_[request.layer];
  if (request.layout.num_tokens != from.counts.total()) {
    return Status(StatusCode::kInvalidArgument, where + ": " + std::to_string(request.layout.num_tokens) +
                                                    " tokens where " + std::to_string(from.counts.total()) +
                                                    " were sent");
  }
  codec::TierMap to{from.counts, request.ids};
  for (uint32_t kv_head = 0; kv_head < request.layout.shape.num_kv_heads; ++kv_head) {
    const Result<codec::TierMoves> moves = codec::CountMoves(from.OfHead(kv_head), to.OfHead(kv_head));
    KVANT_RETURN_IF_ERROR(moves.status().WithContext(where));
    if (*moves != request.layout.moves) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": KV head " + std::to_string(kv_head) + " does not move as announced");
    }
  }
  KVANT_ASSIGN_OR_RETURN(wire::BlockFrame frame, wire::AllocateUpgrade(session, request.layer, request.layout));
  sequence_.layer(request.layer).WriteUpgrade(request.layout, from, to, frame.block(), pool);
  to.counts = codec::CountTiers(to.OfHead(0));
  from = std::move(to);
  return std::move(frame).Seal();
}

}  // namespace kvant::engine
