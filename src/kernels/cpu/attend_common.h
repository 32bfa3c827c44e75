#pragma once

#include "kernels/cpu/attend_kernels.h"
#include "kvant/codec/token_page.h"

// What the attention templates share. V is one of the Lanes structs throughout.
namespace kvant::kernels {
namespace {

using codec::TokenCodec;

// Before loops over rows and vectors: unrolled early, their arrays become registers.
#define KVANT_UNROLL _Pragma("GCC unroll 16")

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

/// Calls body(Count<n>{}) for n = count, 1 <= count <= kMax: a run-time count becomes a compile-time one.
template <int kMax, class Body>
void WithCount(uint32_t count, const Body& body) {
  if constexpr (kMax > 1) {
    if (count < kMax) {
      return WithCount<kMax - 1>(count, body);
    }
  }
  body(Count<kMax>{});
}

constexpr float kLargestX = 32760.0F;  ///< of what is cut to 16 bits, with room for the error of Exp2

constexpr uint32_t RoundUpTo(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Vectors per row in an inner loop: enough independent chains to hide latency, few enough for the registers.
template <class V>
constexpr uint32_t VectorsFor(uint32_t rows) {
  return rows <= V::kMaxRows / 2 ? 4 : 2;
}

/// Calls body(rows, vectors, first_row, first_vector) until all rows and vectors are covered, with compile-time counts.
template <class V, class Body>
void Tiled(uint32_t num_rows, uint32_t num_vectors, const Body& body) {
  for (uint32_t row = 0; row < num_rows; row += V::kMaxRows) {
    const uint32_t left = num_rows - row;
    WithCount<V::kMaxRows>(left < V::kMaxRows ? left : V::kMaxRows, [&](auto rows) {
      constexpr uint32_t kVectors = VectorsFor<V>(decltype(rows)::value);
      uint32_t vector = 0;
      for (; vector + kVectors <= num_vectors; vector += kVectors) {
        body(rows, Count<kVectors>{}, row, vector);
      }
      for (; vector < num_vectors; ++vector) {
        body(rows, Count<1>{}, row, vector);
      }
    });
  }
}

/// Asks for the next lines of the coming stretch.
template <int kLines>
[[gnu::always_inline]] inline void FetchAhead(Fetch& fetch) {
  constexpr size_t kLine = 64;
  if (fetch.at >= fetch.end) {
    fetch = {fetch.then, fetch.then_end, nullptr, nullptr};
    if (fetch.at >= fetch.end) {
      return;
    }
  }
  KVANT_UNROLL
  for (int i = 0; i < kLines; ++i) {
    Prefetch(fetch.at + i * kLine);
  }
  fetch.at += kLines * kLine;
}

/// Lines a step of an inner loop over this many vectors asks for: of the 4 a step's share would be, 3 where memory
/// binds. The softmax between the loops asks for the rest.
template <uint32_t kVectors>
constexpr int kLinesOfStep = kVectors >= 4 ? 3 : 1;

/// Address of the `lane_block`-th run of kLanes tokens in a stretch of key tiles with `unit_bytes` a token and step.
template <class V>
[[gnu::always_inline]] inline const std::byte* KeysAt(const Stretch& stretch, uint32_t lane_block, size_t unit_bytes) {
  const uint32_t token = lane_block * V::kLanes;
  return stretch.keys + token / codec::kTileTokens * stretch.key_tile_bytes + token % codec::kTileTokens * unit_bytes;
}

}  // namespace
}  // namespace kvant::kernels
