#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kvant/base/half.h"

// The vocabulary of vector operations the kernel templates are written in, in plain C++. Its twins for real vector
// registers are lanes_avx2.h and lanes_avx512.h. All live in unnamed namespaces, which keeps every template made from
// them local to its file.
namespace kvant::kernels {
namespace {

struct LanesPortable {
  static constexpr uint32_t kLanes = 4;
  static constexpr uint32_t kMaxRows = 4;  ///< query rows one inner loop keeps accumulators for

  struct F {
    float v[kLanes];
  };
  struct I {
    int32_t v[kLanes];
  };

  template <typename Out, typename Function>
  static Out Make(Function function) {
    Out out;
    for (uint32_t i = 0; i < kLanes; ++i) {
      out.v[i] = function(i);
    }
    return out;
  }

  static F Set(float x) {
    return Make<F>([&](uint32_t) { return x; });
  }
  static F Load(const float* src) {
    return Make<F>([&](uint32_t i) { return src[i]; });
  }
  static F LoadHalf(const void* src) {
    Half halves[kLanes];
    std::memcpy(halves, src, sizeof halves);
    return Make<F>([&](uint32_t i) { return ToFloat(halves[i]); });
  }
  static void Store(float* dst, F a) { std::memcpy(dst, a.v, sizeof a.v); }
  static F Add(F a, F b) {
    return Make<F>([&](uint32_t i) { return a.v[i] + b.v[i]; });
  }
  static F Mul(F a, F b) {
    return Make<F>([&](uint32_t i) { return a.v[i] * b.v[i]; });
  }
  static F Fma(F a, F b, F c) {
    return Make<F>([&](uint32_t i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static F Max(F a, F b) {
    return Make<F>([&](uint32_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F Div(F a, F b) {
    return Make<F>([&](uint32_t i) { return a.v[i] / b.v[i]; });
  }
  static F Abs(F a) {
    return Make<F>([&](uint32_t i) { return std::fabs(a.v[i]); });
  }
  static float Sum(F a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
  static float Largest(F a) { return std::fmax(std::fmax(a.v[0], a.v[1]), std::fmax(a.v[2], a.v[3])); }

  /// 0 where x < limit, else a.
  static F ZeroBelow(F a, F x, float limit) {
    return Make<F>([&](uint32_t i) { return x.v[i] < limit ? 0.0F : a.v[i]; });
  }
  /// x - floor(x); anything where x is not finite.
  static F Fraction(F x) {
    return Make<F>([&](uint32_t i) { return x.v[i] - std::floor(x.v[i]); });
  }
  /// a · 2^floor(x), or 0 where x < limit; limit <= x < 128 gives results in the normal range.
  static F ScaleByFloor(F a, F x, float limit) {
    return Make<F>(
        [&](uint32_t i) { return x.v[i] < limit ? 0.0F : std::ldexp(a.v[i], static_cast<int>(std::floor(x.v[i]))); });
  }

  /// To the nearest integer, ties to even.
  static I Round(F a) {
    return Make<I>([&](uint32_t i) { return static_cast<int32_t>(std::nearbyint(a.v[i])); });
  }
  static F ToFloats(I a) {
    return Make<F>([&](uint32_t i) { return static_cast<float>(a.v[i]); });
  }
  static I SetInt(int32_t x) {
    return Make<I>([&](uint32_t) { return x; });
  }
  static I LoadInt(const void* src) {
    I out;
    std::memcpy(out.v, src, sizeof out.v);
    return out;
  }
  static I AddInt(I a, I b) {
    return Make<I>([&](uint32_t i) { return a.v[i] + b.v[i]; });
  }
  static int32_t SumInt(I a) { return a.v[0] + a.v[1] + a.v[2] + a.v[3]; }
  static I And(I a, I b) {
    return Make<I>([&](uint32_t i) { return a.v[i] & b.v[i]; });
  }
  /// Every 16-bit half shifted right, zeros in.
  template <int kCount>
  static I ShiftRight16(I a) {
    constexpr uint32_t kMask = 0xFFFFU >> kCount;
    return Make<I>([&](uint32_t i) {
      return static_cast<int32_t>((static_cast<uint32_t>(a.v[i]) >> kCount) & (kMask | kMask << 16));
    });
  }
  /// acc + low(a)·low(b) + high(a)·high(b) of the signed 16-bit halves.
  /// Keeps a sum in its register: rows are then met one after the other, where GCC mixes them and runs out.
  static void Pin(I& /*a*/) {}
  static I DotPairs(I acc, I a, I b) {
    return Make<I>([&](uint32_t i) { return acc.v[i] + Low(a.v[i]) * Low(b.v[i]) + High(a.v[i]) * High(b.v[i]); });
  }
  /// As int16, every four reordered to 0 2 1 3: 2·kLanes bytes.
  static void StorePaired(void* dst, I a) {
    const int16_t out[kLanes] = {Low(a.v[0]), Low(a.v[2]), Low(a.v[1]), Low(a.v[3])};
    std::memcpy(dst, out, sizeof out);
  }

 private:
  static int16_t Low(int32_t x) { return static_cast<int16_t>(x & 0xFFFF); }
  static int16_t High(int32_t x) { return static_cast<int16_t>(x >> 16); }
};

}  // namespace
}  // namespace kvant::kernels
