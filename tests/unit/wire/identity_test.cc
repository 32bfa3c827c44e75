#include "kvant/wire/identity.h"

#include <gtest/gtest.h>

#include <functional>

namespace kvant::wire {
namespace {

const ModelIdentity kIdentity{0xA, 0xB, {30, 3, 64}, RopeLayout::kAdjacent, 10000.0F, 0xC};

TEST(IdentityTest, EqualsHaveNoDifference) { EXPECT_EQ(DifferenceOf(kIdentity, kIdentity), ""); }

TEST(IdentityTest, EachFieldIsNamedWithBothValues) {
  const std::pair<std::function<void(ModelIdentity&)>, std::string> cases[] = {
      {[](ModelIdentity& m) { m.model_fingerprint = 0x1F; }, "model_fingerprint: sender 0xa, receiver 0x1f"},
      {[](ModelIdentity& m) { m.tokenizer_fingerprint = 0; }, "tokenizer_fingerprint: sender 0xb, receiver 0x0"},
      {[](ModelIdentity& m) { m.shape.num_layers = 31; }, "num_layers: sender 30, receiver 31"},
      {[](ModelIdentity& m) { m.shape.num_kv_heads = 9; }, "num_kv_heads: sender 3, receiver 9"},
      {[](ModelIdentity& m) { m.shape.head_dim = 80; }, "head_dim: sender 64, receiver 80"},
      {[](ModelIdentity& m) { m.rope_layout = RopeLayout::kHalves; }, "rope_layout: sender adjacent, receiver halves"},
      {[](ModelIdentity& m) { m.rope_base = 500000.5F; }, "rope_base: sender 10000, receiver 500000.5"},
      {[](ModelIdentity& m) { m.rope_digest = 0xD; }, "rope_digest: sender 0xc, receiver 0xd"},
  };
  for (const auto& [change, expected] : cases) {
    ModelIdentity other = kIdentity;
    change(other);
    EXPECT_EQ(DifferenceOf(kIdentity, other), expected);
    EXPECT_NE(kIdentity, other);
  }
}

TEST(IdentityTest, SeveralDifferencesAreListed) {
  ModelIdentity other = kIdentity;
  other.shape.num_layers = 2;
  other.rope_digest = 0;
  EXPECT_EQ(DifferenceOf(kIdentity, other), "num_layers: sender 30, receiver 2; rope_digest: sender 0xc, receiver 0x0");
}

}  // namespace
}  // namespace kvant::wire
