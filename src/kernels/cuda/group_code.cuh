#pragma once

#include "kernels/cuda/quantize.cuh"
#include "kvant/codec/pair_page.h"

/// From numbers to codes of at most four bits, without a conversion instruction. Levels are kept as sixteenths, which
/// is exact: the lower clamp is then the adder's saturation, and one addition of 2^19 rounds to whole codes and leaves
/// them in the lowest bits of the sum.
namespace kvant::kernels::cuda {

KVANT_DEVICE float AddSaturated(float a, float b) {
  float sum;
  asm("add.rn.sat.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}

KVANT_DEVICE bool HasCells(codec::PairRule rule, int bits) { return rule == codec::PairRule::kMidRise || bits == 1; }
KVANT_DEVICE DeviceGroup Fit(codec::PairRule rule, int bits, float low, float high) {
  return HasCells(rule, bits) ? FitMidRise(bits, low, high) : FitAffine(bits, low, high);
}

/// What turns a number into its code: level = (x - zero) · inverse, then its cell (mid-rise) or the nearest level.
struct alignas(16) GroupCode {
  float zero;
  float inverse;  ///< of the scale, a sixteenth
  float top;      ///< the largest level in sixteenths; within the last cell for cells
  float half;     ///< 1/32: a level's cell; 0: the nearest level

  static KVANT_DEVICE GroupCode Of(const DeviceGroup& group, int bits, bool has_cells) {
    const float last = static_cast<float>(quant::AffineMax(bits));
    return {group.zero_value, group.inverse * 0.0625F, (last + (has_cells ? 0.5F : 0.0F)) * 0.0625F,
            has_cells ? 0.03125F : 0.0F};
  }

  /// The code in the low 16 bits, of a page whose groups all have cells, or of any.
  template <bool kAllCells>
  KVANT_DEVICE uint32_t Encode(float x) const {
    constexpr float kWhole = 524288.0F;  // 2^19: the last bit of a sum is a sixteenth
    const float level = __fmul_rn(__fsub_rn(x, zero), inverse);
    const float clamped = fminf(AddSaturated(level, kAllCells ? 0.03125F : half), top);
    const float code = kAllCells || half != 0.0F ? __fadd_rd(clamped, kWhole) : __fadd_rn(clamped, kWhole);
    return __float_as_uint(code);
  }
};

/// Two codes, one in each half of a word.
KVANT_DEVICE uint32_t PackCodes(uint32_t low, uint32_t high) { return __byte_perm(low, high, 0x5410); }

}  // namespace kvant::kernels::cuda
