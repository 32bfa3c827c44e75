#include "engine/identity.h"

#include <span>

#include "kvant/base/hash.h"

namespace kvant::engine {
namespace {

uint64_t RopeDigest(const Engine& engine) {
  const ModelParams& params = engine.model().params();
  const RopeParams& rope = params.rope;
  const bool plain = !rope.has_freq_factors && !rope.has_long_factors && rope.dims == params.head_dim;
  if (rope.scaling == RopeScaling::kNone && plain) {
    return 0;
  }
  Hasher64 hasher;
  const auto add = [&](const auto& value) { hasher.Update(std::as_bytes(std::span(&value, 1))); };
  add(rope.dims);
  add(rope.scaling);
  add(rope.factor);
  add(rope.original_context);
  add(rope.attn_factor);
  add(rope.has_long_factors && engine.context_tokens() > rope.original_context);
  return hasher.Digest();  // the factors themselves are weights, and so in the model's fingerprint
}

}  // namespace

wire::ModelIdentity IdentityOf(const Engine& engine, const Tokenizer& tokenizer) {
  const Model& model = engine.model();
  const RopeParams& rope = model.params().rope;
  return {.model_fingerprint = model.fingerprint(),
          .tokenizer_fingerprint = tokenizer.fingerprint(),
          .shape = model.cache_shape(),
          .rope_layout = rope.layout == RopeLayout::kHalves ? wire::RopeLayout::kHalves : wire::RopeLayout::kAdjacent,
          .rope_base = rope.base,
          .rope_digest = RopeDigest(engine)};
}

}  // namespace kvant::engine
