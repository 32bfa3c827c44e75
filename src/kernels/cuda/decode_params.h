#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/kernels/cuda/decode_plan.h"
#include "kvant/kernels/cuda/device_layout.h"

namespace kvant::kernels::cuda {

/// Pages of one format in GPU memory: page p, KV head h begins at base + p · page_bytes + h · record_bytes.
struct PoolParams {
  const std::byte* base = nullptr;
  uint64_t page_bytes = 0;
  uint32_t record_bytes = 0;
  uint32_t log2_tiles = 0;  ///< tiles of a page
};

/// Everything a decode launch reads; passed by value.
struct DecodeParams {
  // The plan's vectors.
  const DecodeRun* runs = nullptr;
  const DecodeBlock* blocks = nullptr;
  const DecodeEnd* ends = nullptr;
  const float* q = nullptr;
  float* out = nullptr;
  const uint32_t* page_table = nullptr;
  PoolParams pools[kNumDecodeFormats];
  const PairDeviceMap* maps = nullptr;
  const uint16_t* equalization = nullptr;  ///< [map][kv_head][mean, scale][head_dim] fp16
  float* partial_out = nullptr;            ///< [slot][8][head_dim]
  float* partial_stats = nullptr;          ///< [slot][8][max, sum]
  uint32_t* arrived = nullptr;             ///< [item], zero between launches
  uint32_t stage_bytes = 0;
  uint32_t num_q_heads = 0;
  uint32_t num_kv_heads = 0;
  float q_scale = 0;     ///< softmax scale · log2(e)
  float soft_cap = 0;    ///< in units of log2; 0: none
  uint32_t rotated = 0;  ///< bit f: values of format f are stored Hadamard-rotated
};

}  // namespace kvant::kernels::cuda
