#include <cuda_runtime.h>

#include "kernels/cuda/pack_launch.cuh"

namespace kvant::kernels::cuda {
namespace {

/// One block flushes the keys (z = 0) or the values (z = 1) of one job, layer and KV head.
template <int kHeadDim, int kValueBits, bool kAllCells>
__global__ void __launch_bounds__(kPackThreads, 2) FlushResidualKernel(const ResidualFlush flush) {
  const ResidualFlushJob job = flush.jobs[blockIdx.x % flush.num_jobs];
  const ResidualFlushLayer layer = flush.layers[blockIdx.x / flush.num_jobs];
  const uint32_t head = blockIdx.y;
  const PairDeviceMap* map = layer.maps + job.map * flush.num_kv_heads + head;
  std::byte* record = static_cast<std::byte*>(layer.pages) + job.page * layer.page_bytes + head * layer.record_bytes;
  const auto tile = [&](uint32_t i, size_t side) {
    const uint32_t tiles_a_page = flush.tile_page_tokens / kTileTokens;
    const uint32_t at = job.first_tile + threadIdx.x / 32 * 2 + i;
    const uint32_t page = __ldg(flush.page_table + job.page_table + at / tiles_a_page);
    return static_cast<const std::byte*>(layer.tiles) + page * flush.tile_page_bytes + head * flush.tile_record_bytes +
           at % tiles_a_page * TokenTileBytes(codec::TokenCodec::kFp16, kHeadDim) + side;
  };
  if (blockIdx.z == 0) {
    PackKeys<kHeadDim, kAllCells>(flush.format, map, record, [&](PackRows<kHeadDim>& rows) {
      LoadOwnTiles<true>(rows, [&](uint32_t i) { return tile(i, 0); });
    });
  } else {
    PackValues<kHeadDim, kValueBits, kAllCells>(flush.format, map, record, [&](PackRows<kHeadDim>& rows) {
      LoadOwnTiles<false>(rows,
                          [&](uint32_t i) { return tile(i, TokenTileCodeBytes(codec::TokenCodec::kFp16, kHeadDim)); });
    });
  }
}

}  // namespace

Status FlushResidual(const ResidualFlush& flush, Stream stream) {
  const uint32_t tiles = flush.tile_page_tokens / kTileTokens;
  if (flush.num_jobs != 0 && (tiles == 0 || flush.tile_page_tokens % kTileTokens != 0)) {
    return {StatusCode::kInvalidArgument, "pages of the residual are no whole tiles of 16 tokens"};
  }
  return LaunchPack(flush.format, dim3(flush.num_jobs * flush.num_layers, flush.num_kv_heads, 2), flush, stream,
                    [](auto d, auto bits, auto cells) { return FlushResidualKernel<d(), bits(), cells()>; });
}

}  // namespace kvant::kernels::cuda
