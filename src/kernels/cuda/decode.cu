#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/decode_variant_list.h"
#include "kernels/cuda/status.h"
#include "kvant/kernels/cuda/decode.h"

namespace kvant::kernels::cuda {
namespace {

constexpr uint32_t kStages = 2;
constexpr float kLog2E = 1.4426950408889634F;

const std::vector<DecodeVariant>& Variants() {
  static const std::vector<DecodeVariant> variants = AllDecodeVariants();
  return variants;
}

uint32_t PairTileBytes(const DecodeRequest& request) {
  const uint32_t d = request.shape.head_dim;
  uint32_t groups = 0;
  for (uint32_t plane = 0; plane < 2; ++plane) {
    const uint32_t bits = ValuePlaneBits(request.value_bits, plane);
    groups += bits == 0 ? 0 : ValueGroupsOfPlane(d, bits);
  }
  return 256 * request.max_key_columns + 256 * groups;
}

// Scales and zeros of a pair record.
uint32_t PairTailBytes(const DecodeRequest& request) {
  return 4 * request.shape.head_dim + 4 * kPairPageTokens * request.value_groups;
}

// A stage holds the largest load of any format the kernel reads.
uint32_t StageBytes(const DecodeVariant& variant, const DecodeRequest& request) {
  const uint32_t d = request.shape.head_dim;
  auto bytes = static_cast<uint32_t>(TokenTileBytes(codec::TokenCodec::kFp16, d));
  if (variant.pair_pages) {
    bytes = std::max(bytes, variant.pair_unit_tiles * PairTileBytes(request) + PairTailBytes(request));
  } else if (!variant.bf16_pages) {
    bytes = std::max(bytes, static_cast<uint32_t>(2 * TokenTileBytes(codec::TokenCodec::kInt8, d)));
    bytes = std::max(bytes, static_cast<uint32_t>(4 * TokenTileBytes(codec::TokenCodec::kInt4Affine, d)));
  }
  return (std::max(bytes, variant.least_stage) + 127) / 128 * 128;
}

DecodeCosts CostsOf(const DecodeVariant& variant, const DecodeRequest& request) {
  const uint32_t d = request.shape.head_dim;
  DecodeCosts costs;
  for (uint32_t f = 0; f < codec::kNumTokenCodecs; ++f) {
    costs.tile_bytes[f] = static_cast<uint32_t>(TokenTileBytes(static_cast<codec::TokenCodec>(f), d));
  }
  costs.tile_bytes[static_cast<size_t>(DecodeFormat::kPair)] = PairTileBytes(request) + PairTailBytes(request) / 8;
  costs.tile_bytes[static_cast<size_t>(DecodeFormat::kBf16)] = costs.tile_bytes[0];
  costs.unit_tiles = {1, 2, 4, 4, std::max(variant.pair_unit_tiles, 1U), 1};
  costs.tile_overhead = 256;
  // What a warp reads in the time, measured (ADR 0102). Beginning a pair segment costs less than a page: not counted.
  if (!variant.pair_pages) costs.start_bytes.fill(48 * 1024);
  costs.fine_below = 64 * 1024;
  costs.least_bytes = 2048;
  return costs;
}

struct DeviceFacts {
  uint32_t multiprocessors = 0;
  uint32_t shared_bytes = 0;
};

Result<DeviceFacts> FactsOfDevice() {
  int device = 0;
  int multiprocessors = 0;
  int shared = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    return Status{StatusCode::kNotFound, std::string("no usable GPU: ") + cudaGetErrorString(cudaGetLastError())};
  }
  return DeviceFacts{static_cast<uint32_t>(multiprocessors), static_cast<uint32_t>(shared)};
}

bool Serves(const DecodeVariant& variant, const DecodeRequest& request) {
  return variant.head_dim == request.shape.head_dim && variant.pair_pages == request.pair_pages &&
         variant.bf16_pages == request.bf16_pages && variant.soft_cap == request.soft_cap &&
         (!variant.half_three_one || request.half_three_one) &&
         (!request.pair_pages ||
          (variant.value_bits == request.value_bits && variant.value_groups == request.value_groups));
}

bool Reads(const DecodeVariant& variant, DecodeFormat format) {
  if (variant.bf16_pages) {
    return format == DecodeFormat::kBf16;
  }
  if (variant.pair_pages) {
    return format == DecodeFormat::kFp16 || format == DecodeFormat::kPair;
  }
  return format != DecodeFormat::kPair && format != DecodeFormat::kBf16;
}

Status Unsupported(const DecodeRequest& request) {
  std::string what = "head dimension " + std::to_string(request.shape.head_dim);
  if (request.pair_pages) {
    what += ", pair pages with " + std::to_string(request.value_bits) + "-bit values in " +
            std::to_string(request.value_groups) + (request.value_groups == 1 ? " group and " : " groups and ") +
            std::to_string(request.max_key_columns) + " key columns";
  }
  if (request.bf16_pages) {
    what += ", bf16 pages";
  }
  return {StatusCode::kModelUnsupported, "no CUDA decode kernel for " + what + (request.soft_cap ? ", soft cap" : "")};
}

Status CheckPools(const DecodePlan& plan, const DecodeLaunch& launch) {
  for (const DecodeRun& run : plan.runs) {
    const auto format = static_cast<size_t>(run.format);
    const PagePool& pool = launch.pools[format];
    if (run.num_tiles == 0) {
      continue;
    }
    const uint32_t tiles = pool.page_tokens / kTileTokens;
    if (pool.base == nullptr || tiles == 0 || pool.page_tokens % kTileTokens != 0 || (tiles & (tiles - 1)) != 0 ||
        pool.record_bytes % 16 != 0 || pool.page_bytes % 16 != 0) {
      return {StatusCode::kInvalidArgument,
              "the pool of format " + std::to_string(format) + " is missing or misshapen"};
    }
    if (run.format == DecodeFormat::kPair && launch.maps == nullptr) {
      return {StatusCode::kInvalidArgument, "pair pages without width maps"};
    }
  }
  return OkStatus();
}

DecodeParams ParamsOf(const DecodeKernel& kernel, const DecodePlan& plan, const DecodeLaunch& launch) {
  DecodeParams params;
  const auto* bytes = static_cast<const std::byte*>(launch.plan);
  const DecodePlan::Offsets at = plan.DeviceOffsets();
  params.runs = reinterpret_cast<const DecodeRun*>(bytes + at.runs);
  params.blocks = reinterpret_cast<const DecodeBlock*>(bytes + at.blocks);
  params.ends = reinterpret_cast<const DecodeEnd*>(bytes + at.ends);
  params.q = launch.q;
  params.out = launch.out;
  params.page_table = launch.page_table;
  for (size_t f = 0; f < kNumDecodeFormats; ++f) {
    const PagePool& pool = launch.pools[f];
    uint32_t log2_tiles = 0;
    while ((uint32_t{kTileTokens} << (log2_tiles + 1)) <= pool.page_tokens) {
      ++log2_tiles;
    }
    params.pools[f] = {static_cast<const std::byte*>(pool.base), pool.page_bytes,
                       static_cast<uint32_t>(pool.record_bytes), log2_tiles};
    params.rotated |= (launch.rotated_values[f] ? 1U : 0U) << f;
  }
  params.maps = launch.maps;
  params.equalization = static_cast<const uint16_t*>(launch.equalization);
  auto* workspace = static_cast<std::byte*>(launch.workspace);
  params.arrived = reinterpret_cast<uint32_t*>(workspace);
  params.partial_stats = reinterpret_cast<float*>(workspace + WorkspaceOf(plan).counter_bytes);
  params.partial_out = params.partial_stats + size_t{plan.num_slots} * 16;
  params.stage_bytes = kernel.stage_bytes;
  params.num_q_heads = plan.shape.num_q_heads();
  params.num_kv_heads = plan.shape.num_kv_heads;
  params.q_scale = launch.softmax_scale * kLog2E;
  params.soft_cap = launch.soft_cap * kLog2E;
  return params;
}

}  // namespace

Result<DecodeKernel> SelectDecode(const DecodeRequest& request) {
  KVANT_ASSIGN_OR_RETURN(const DeviceFacts facts, FactsOfDevice());
  const std::vector<DecodeVariant>& variants = Variants();
  for (size_t i = 0; i < variants.size(); ++i) {
    const DecodeVariant& variant = variants[i];
    if (!Serves(variant, request)) {
      continue;
    }
    const uint32_t stage = StageBytes(variant, request);
    const uint32_t shared = variant.fixed_shared + variant.warps * kStages * stage;
    if (shared > facts.shared_bytes) {
      continue;
    }
    KVANT_RETURN_IF_ERROR(StatusOf(
        cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "decode attention"));
    return DecodeKernel{
        static_cast<int>(i), {facts.multiprocessors, variant.warps}, CostsOf(variant, request), stage, shared};
  }
  return Unsupported(request);
}

DecodeWorkspace WorkspaceOf(const DecodePlan& plan) {
  return {(plan.items.size() * 4 + 127) / 128 * 128, size_t{plan.num_slots} * (64 + size_t{32} * plan.shape.head_dim)};
}

Status ClearWorkspace(const DecodePlan& plan, void* workspace, Stream stream) {
  return StatusOf(cudaMemsetAsync(workspace, 0, WorkspaceOf(plan).counter_bytes, AsStream(stream)), "decode workspace");
}

Status DecodeAttention(const DecodeKernel& kernel, const DecodePlan& plan, const DecodeLaunch& launch, Stream stream) {
  if (kernel.id < 0 || static_cast<size_t>(kernel.id) >= Variants().size() ||
      kernel.grid.warps_per_block != plan.grid.warps_per_block || kernel.grid.num_blocks != plan.grid.num_blocks) {
    return {StatusCode::kInvalidArgument, "the plan was made for another kernel"};
  }
  const DecodeVariant& variant = Variants()[static_cast<size_t>(kernel.id)];
  for (const DecodeRun& run : plan.runs) {
    if (run.num_tiles != 0 && !Reads(variant, run.format)) {
      return {StatusCode::kInvalidArgument, "the plan has a segment of format " +
                                                std::to_string(static_cast<int>(run.format)) +
                                                ", which the kernel does not read"};
    }
  }
  if ((launch.soft_cap != 0.0F) != variant.soft_cap) {
    return {StatusCode::kInvalidArgument, "the kernel was selected for another soft cap"};
  }
  KVANT_RETURN_IF_ERROR(CheckPools(plan, launch));
  variant.launch(ParamsOf(kernel, plan, launch), kernel.grid.num_blocks, kernel.shared_bytes, AsStream(stream));
  return StatusOf(cudaGetLastError(), "decode attention");
}

}  // namespace kvant::kernels::cuda
