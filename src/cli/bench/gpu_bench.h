#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"

namespace kvant::cli {

/// The benches of the GPU's kernels, behind --device cuda. A build without CUDA has them too: they fail and say so.

struct GpuAttention {
  std::string kv;  ///< formats, separated by commas; "pnmix,v=4" is one
  std::vector<uint32_t> contexts;
  uint32_t batch = 8;
  uint32_t head_dim = 128;
  uint32_t kv_heads = 8;
  uint32_t q_heads = 64;
  bool quick = false;
};
inline constexpr const char* kGpuFormats = "fp16,bf16,int8,int4,pnmix,pnmix,v=4";

struct GpuPages {
  uint32_t head_dim = 128;
  bool quick = false;
};

Status RunGpuAttention(const GpuAttention& wanted, Console& console);
Status RunGpuCodec(const GpuPages& wanted, Console& console);
Status RunGpuPack(const GpuPages& wanted, Console& console);

/// --device, cpu or cuda.
void AddDevice(CLI::App& command, std::string& device);

}  // namespace kvant::cli
