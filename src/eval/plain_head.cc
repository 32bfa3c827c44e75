#include "eval/plain_head.h"

#include <algorithm>

#include "kvant/kernels/plain_slice.h"

namespace kvant::eval {
namespace {

void AddSlice(const kernels::AttendSlice& slice, PlainHead* head) {
  const kernels::PlainSlice plain = kernels::LoadPlainSlice(slice);
  const codec::Tier tier =
      slice.segment.pair != nullptr ? codec::Tier::kInt4 : codec::TierOf(slice.segment.layout->codec);
  for (uint32_t t = 0; t < plain.num_tokens; ++t) {
    const auto position = static_cast<size_t>(plain.positions[t]);
    const auto copy = [&](const std::vector<float>& from, std::vector<float>& to) {
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(size_t{t} * head->head_dim), head->head_dim,
                  to.begin() + static_cast<ptrdiff_t>(position * head->head_dim));
    };
    copy(plain.keys, head->keys);
    copy(plain.values, head->values);
    head->tiers[position] = tier;
  }
}

}  // namespace

PlainHead LoadPlainHead(const cache::LayerCache& cache, uint32_t kv_head) {
  const size_t elements = size_t{cache.num_tokens()} * cache.shape().head_dim;
  PlainHead head{cache.shape().head_dim, std::vector<float>(elements), std::vector<float>(elements),
                 std::vector<codec::Tier>(cache.num_tokens(), codec::Tier::kDropped)};
  for (uint32_t chunk = 0; chunk < cache.num_chunks(); ++chunk) {
    const cache::ChunkSlices slices = cache.Chunk(kv_head, chunk);
    for (const kernels::AttendSlice& slice : slices.span()) {
      AddSlice(slice, &head);
    }
  }
  return head;
}

}  // namespace kvant::eval
