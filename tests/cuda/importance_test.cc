#include "kvant/kernels/cuda/importance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace kvant::kernels::cuda {
namespace {

// Keys and queries of one number repeated: what attention gives them is known by heart.
TEST(AttentionMassRef, EqualKeysShareEveryQueryEqually) {
  const std::vector<Half> ones(3 * 64, ToHalf(1.0F));
  AttentionMass call;
  call.head_dim = 64;
  call.num_kv_heads = 1;
  call.q = ones.data();
  call.num_queries = 3;
  call.keys = ones.data();
  call.num_keys = 3;
  std::vector<double> mass(3);
  AddAttentionMassRef(call, mass);
  EXPECT_NEAR(mass[0], 1.0 + 1.0 / 2 + 1.0 / 3, 1e-12);
  EXPECT_NEAR(mass[1], 1.0 / 2 + 1.0 / 3, 1e-12);
  EXPECT_NEAR(mass[2], 1.0 / 3, 1e-12);

  call.window = 1;  // every query sees itself only
  std::fill(mass.begin(), mass.end(), 0.0);
  AddAttentionMassRef(call, mass);
  EXPECT_EQ(mass, (std::vector<double>{1, 1, 1}));
}

TEST(PairNormsRef, BothLayouts) {
  // Channels 0…3: 3, 4, 4, 3.
  const std::vector<Half> row = {ToHalf(3.0F), ToHalf(4.0F), ToHalf(4.0F), ToHalf(3.0F)};
  std::vector<double> split(2);
  AddPairNormsRef(codec::PairLayout::kHalfSplit, 4, 1, row, split);
  EXPECT_EQ(split, (std::vector<double>{5, 5}));
  std::vector<double> interleaved(2);
  AddPairNormsRef(codec::PairLayout::kInterleaved, 4, 1, row, interleaved);
  EXPECT_EQ(interleaved, (std::vector<double>{5, 5}));
  const std::vector<Half> other = {ToHalf(3.0F), ToHalf(0.0F), ToHalf(4.0F), ToHalf(1.0F)};
  AddPairNormsRef(codec::PairLayout::kHalfSplit, 4, 1, other, split);
  EXPECT_EQ(split, (std::vector<double>{10, 6}));
}

TEST(PairSaliency, MeanOverTheGroupTimesMeanOfTheKeys) {
  // Two KV heads of two query heads each, two pairs; 10 queries, 5 keys.
  const std::vector<float> q = {10, 20, 30, 40, 50, 60, 70, 80};
  const std::vector<float> k = {5, 10, 15, 20};
  const std::vector<float> saliency = PairSaliency(q, k, 2, 10, 5);
  EXPECT_EQ(saliency, (std::vector<float>{2 * 1, 3 * 2, 6 * 3, 7 * 4}));
}

}  // namespace
}  // namespace kvant::kernels::cuda
