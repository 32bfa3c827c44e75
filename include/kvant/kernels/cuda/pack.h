#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/base/status.h"
#include "kvant/codec/pair_page.h"
#include "kvant/codec/token_codec.h"
#include "kvant/kernels/cuda/device_layout.h"
#include "kvant/kernels/cuda/stream.h"

/// Making codes on the GPU: the same bytes as the scalar references of codec/.
namespace kvant::kernels::cuda {

/// Rows of one token and KV head each, structure of arrays in GPU memory (codec::TokenRows).
struct DeviceRows {
  uint8_t* codes = nullptr;    ///< [num_rows, RowCodeBytes], 16-byte aligned
  uint16_t* scales = nullptr;  ///< [num_rows] fp16
  uint16_t* zeros = nullptr;   ///< [num_rows] fp16; kInt4Affine
};

/// codec::EncodeRowsRef and DecodeRowsRef, byte for byte.
///
/// Shapes   rows [num_rows, head_dim] fp16, 16-byte aligned, consecutive
/// Requires finite rows
/// Errors   kModelUnsupported: head_dim not 64, 128 or 256; kInvalidArgument: kFp16, which is a copy
Status EncodeRows(codec::TokenCodec codec, uint32_t head_dim, const void* rows, size_t num_rows, DeviceRows out,
                  Stream stream);
Status DecodeRows(codec::TokenCodec codec, uint32_t head_dim, DeviceRows in, size_t num_rows, void* rows,
                  Stream stream);

/// Up to 16 tokens of all KV heads of one layer that go into one tile of a page.
struct TileStoreJob {
  uint64_t first_row = 0;  ///< of the source, as in PairPackJob
  uint32_t page = 0;
  uint32_t tile = 0;  ///< of the page
  uint16_t first_slot = 0;
  uint16_t num_tokens = 0;     ///< first_slot + num_tokens <= 16
  uint32_t map = 0xFFFFFFFFU;  ///< equalization map of the keys; all ones: none
};

struct TileStore {
  codec::TokenCodec codec{};
  uint32_t head_dim = 0;
  uint32_t num_kv_heads = 0;
  uint32_t num_jobs = 0;
  const TileStoreJob* jobs = nullptr;
  const void* keys = nullptr;  ///< fp16 [row][kv_head][head_dim], 16-byte aligned
  const void* values = nullptr;
  const void* equalization = nullptr;  ///< [map][kv_head][mean, scale][head_dim] fp16
  void* pool = nullptr;                ///< records as in PagePool
  size_t page_bytes = 0;
  size_t record_bytes = 0;
};

/// codec::EqualizeRow, EncodeRowsRef and StoreTokenTilesRef in one: a prompt's or a step's keys and values into pages,
/// fp16 included. Other slots of a tile keep what they hold; a tile whose slot 0 is written is cleared behind the
/// tokens, so that nothing stale stands there.
///
/// Requires finite rows; no two jobs on one tile
Status StoreTiles(const TileStore& store, Stream stream);

/// 128 tokens of all KV heads of one layer that become one page each.
struct PairPackJob {
  uint64_t first_row =
      0;  ///< of the source: row t of KV head h begins at element ((first_row + t) · heads + h) · head_dim
  uint32_t page = 0;  ///< where in the pool
  uint32_t map = 0;   ///< which width map, as in DecodeSegment
};

struct PairPack {
  codec::PairFormat format;
  uint32_t num_kv_heads = 0;
  uint32_t num_jobs = 0;
  const PairPackJob* jobs = nullptr;  ///< [num_jobs]
  const void* keys = nullptr;         ///< fp16, 16-byte aligned
  const void* values = nullptr;
  const PairDeviceMap* maps = nullptr;  ///< [map][kv_head]
  void* pool = nullptr;                 ///< records as in PagePool
  size_t page_bytes = 0;
  size_t record_bytes = 0;
};

/// codec::EncodePairPageRef into records of the device layout, code for code; many pages a launch.
///
/// Requires finite input
/// Errors   kModelUnsupported, kInvalidArgument name what is not supported
Status PackPairPages(const PairPack& pack, Stream stream);

/// 128 tokens of a sequence that leave the fp16 residual: eight tiles of an fp16 segment become one page.
struct ResidualFlushJob {
  uint32_t page_table = 0;  ///< index of the fp16 segment's first page, as in DecodeSegment
  uint32_t first_tile = 0;  ///< of the segment
  uint32_t page = 0;        ///< where in the pair pool
  uint32_t map = 0;
};

/// One layer's memory. Which tokens lie where is a function of position alone, so jobs and page table serve all layers.
struct ResidualFlushLayer {
  const void* tiles = nullptr;          ///< base of the fp16 pool
  void* pages = nullptr;                ///< base of the pair pool
  const PairDeviceMap* maps = nullptr;  ///< [map][kv_head]
  size_t page_bytes = 0;                ///< of the pair pool
  size_t record_bytes = 0;
};

struct ResidualFlush {
  codec::PairFormat format;
  uint32_t num_kv_heads = 0;
  uint32_t num_jobs = 0;
  uint32_t num_layers = 0;
  const ResidualFlushJob* jobs = nullptr;      ///< [num_jobs]
  const ResidualFlushLayer* layers = nullptr;  ///< [num_layers], in GPU memory
  const uint32_t* page_table = nullptr;
  uint32_t tile_page_tokens = 0;  ///< of the fp16 pools: 16 times a power of two
  size_t tile_page_bytes = 0;
  size_t tile_record_bytes = 0;
};

/// PackPairPages of what StoreTiles put into fp16 tiles, for all sequences and layers in one launch. The tiles stay as
/// they are. Numerics and errors as PackPairPages
Status FlushResidual(const ResidualFlush& flush, Stream stream);

}  // namespace kvant::kernels::cuda
