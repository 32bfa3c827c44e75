#include "kvant/kernels/equalize.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvant::kernels {
namespace {

std::vector<Half> RandomKeys(size_t count, uint32_t head_dim) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<Half> keys(count * head_dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t channel = i % head_dim;
    const float gain = channel == 3 ? 30000.0F : channel == 4 ? 1e-6F : channel == 5 ? 0.0F : 1.0F;
    keys[i] = ToHalf((channel == 2 ? 250.0F : 0.0F) + normal(random) * gain);
    keys[i] = ToFloat(keys[i]) > kHalfMax    ? ToHalf(kHalfMax)
              : ToFloat(keys[i]) < -kHalfMax ? ToHalf(-kHalfMax)
                                             : keys[i];
  }
  return keys;
}

// What earlier batches may have left.
struct Stats {
  explicit Stats(uint32_t head_dim) : sums(head_dim, 0.25), lows(head_dim, 0.5F), highs(head_dim, -0.5F) {}
  friend bool operator==(const Stats&, const Stats&) = default;

  std::vector<double> sums;
  std::vector<float> lows;
  std::vector<float> highs;
};

TEST(Equalize, EveryIsaGivesTheReferencesBits) {
  const EqualizeKernels& reference = EqualizeKernelsOf(Isa::kScalar);
  for (const Isa isa : AvailableIsas()) {
    const EqualizeKernels& fast = EqualizeKernelsOf(isa);
    for (const uint32_t head_dim : {32U, 40U, 64U, 100U, 128U, 256U}) {
      for (const size_t count : {1U, 2U, 17U, 128U}) {
        SCOPED_TRACE(testing::Message() << IsaName(isa) << " " << head_dim << " " << count);
        const std::vector<Half> keys = RandomKeys(count, head_dim);
        Stats stats(head_dim);
        Stats fast_stats(head_dim);
        reference.add_keys(head_dim, keys.data(), count, stats.sums.data(), stats.lows.data(), stats.highs.data());
        fast.add_keys(head_dim, keys.data(), count, fast_stats.sums.data(), fast_stats.lows.data(),
                      fast_stats.highs.data());
        ASSERT_EQ(stats, fast_stats);
        const std::vector<Half> mean(keys.begin(), keys.begin() + head_dim);
        std::vector<Half> scale(head_dim, ToHalf(0.37F));
        scale[1] = ToHalf(6e-5F);  // what is divided by it leaves the fp16 range
        std::vector<Half> equalized = keys;
        std::vector<Half> fast_equalized = keys;
        reference.equalize(head_dim, mean.data(), scale.data(), equalized.data(), count);
        fast.equalize(head_dim, mean.data(), scale.data(), fast_equalized.data(), count);
        ASSERT_EQ(equalized, fast_equalized);
      }
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
