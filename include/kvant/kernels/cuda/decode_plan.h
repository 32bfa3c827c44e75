#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/token_codec.h"

/// Who does what in one launch of decode attention. The plan is a pure function of lengths and formats: it is made once
/// a step on the host, copied to the GPU, and serves every layer.
namespace kvant::kernels::cuda {

/// How the tokens of a segment are stored (device_layout.h). The first four are the token codecs' numbers; bf16 lies as
/// fp16 does.
enum class DecodeFormat : uint8_t { kFp16 = 0, kInt8 = 1, kInt4 = 2, kInt4Affine = 3, kPair = 4, kBf16 = 5 };
inline constexpr uint32_t kNumDecodeFormats = 6;

/// What `format` looks like in memory, for all but pair pages.
constexpr codec::TokenCodec TokenCodecOf(DecodeFormat format) {
  return format == DecodeFormat::kBf16 ? codec::TokenCodec::kFp16 : static_cast<codec::TokenCodec>(format);
}

/// Consecutive tokens of one sequence in one format: sinks, pages, residual. Softmax does not care for the order.
struct DecodeSegment {
  DecodeFormat format = DecodeFormat::kFp16;
  uint32_t num_tokens = 0;
  uint32_t first_visible = 0;  ///< tokens before it lie outside the window
  uint32_t page_table = 0;     ///< index of the segment's first page in the page table
  uint32_t map = 0;            ///< kPair: which width map (map · num_kv_heads + kv_head in the layer's maps)
};

struct DecodeShape {
  uint32_t head_dim = 128;  ///< 64, 128 or 256
  uint32_t num_kv_heads = 8;
  uint32_t q_heads_per_kv_head = 8;  ///< 1…16; more than 8 are two groups, side by side on the same tiles
  uint32_t num_q_heads() const { return num_kv_heads * q_heads_per_kv_head; }
};

/// Runs in pair pages begin and end at multiples of so many tiles.
inline constexpr uint32_t kPairSplitTiles = 4;

/// What a tile of 16 tokens costs, in bytes, and how tiles are handed out.
struct DecodeCosts {
  std::array<uint32_t, kNumDecodeFormats> tile_bytes{};
  /// Of one tile beyond its bytes, in bytes: what a warp's latency is worth.
  uint32_t tile_overhead = 0;
  /// Of beginning a segment of an item amid other work, in bytes: its queries, its first reference, its odd end.
  std::array<uint32_t, kNumDecodeFormats> start_bytes{};
  /// Splits fall on multiples of so many tiles inside a segment: whole loads of the inner loop.
  std::array<uint32_t, kNumDecodeFormats> unit_tiles{};
  /// Below so many bytes a warp, but not below one load, splits may fall on any kPairSplitTiles tiles of a
  /// pair page, and on any tile elsewhere.
  uint32_t fine_below = 0;
  /// No warp is given less than about that many bytes: merging costs more.
  uint32_t least_bytes = 0;
};

/// The machine: blocks in the grid and warps in a block.
struct DecodeGrid {
  uint32_t num_blocks = 0;
  uint32_t warps_per_block = 0;
  uint32_t num_warps() const { return num_blocks * warps_per_block; }
};

/// What becomes of the softmax state when a run ends.
enum class RunEnd : uint8_t {
  kContinue = 0,  ///< the next run goes on with the same item
  kFinal = 1,     ///< the item was this warp's alone: the output is written
  kShared = 2,    ///< to shared memory; the block merges its group (always the warp's last run)
  kPartial = 3,   ///< to a partial slot; the block says so at its end
};

/// One warp's work in one segment of one item; an item is a sequence and up to 8 query heads of one KV head.
/// Warp w begins with run w; num_tiles = 0 there means no work.
struct DecodeRun {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;

  uint32_t next = kNone;
  uint32_t sequence = 0;
  uint16_t kv_head = 0;
  uint16_t first_q_head = 0;
  uint8_t num_q_heads = 0;
  DecodeFormat format = DecodeFormat::kFp16;
  uint8_t begins_item = 0;
  RunEnd end = RunEnd::kContinue;
  uint32_t first_tile = 0;
  uint32_t num_tiles = 0;
  uint32_t num_tokens = 0;
  uint32_t first_visible = 0;
  uint32_t page_table = 0;
  uint32_t map = 0;
  uint32_t item = 0;
  uint32_t slot = 0;  ///< kPartial: where to
};
static_assert(sizeof(DecodeRun) == 48);

/// Warps of one block that end on the same item, or one warp's part that lies in its slot already.
struct DecodeGroup {
  uint32_t item = DecodeRun::kNone;
  uint32_t slot = 0;   ///< partial slot; kNone: the item is complete, the output is written
  uint32_t warps = 0;  ///< bit w: warp w of the block; 0: nothing is left to be merged here
  uint32_t block = 0;
};
static_assert(sizeof(DecodeGroup) == 16);

/// An item that is merged from several parts.
struct DecodeItem {
  uint32_t sequence = 0;
  uint16_t first_q_head = 0;
  uint16_t num_q_heads = 0;
  uint32_t first_slot = 0;
  uint32_t num_slots = 0;
};
static_assert(sizeof(DecodeItem) == 16);

/// What a block does at its end, with all that it needs in one place, so that nobody waits for one read to know the
/// next: [num_blocks][2 · warps_per_block] on the GPU, item = kNone behind the last. A warp has two parts at most: of
/// the item that it begins with and of the one that it ends on.
struct DecodeEnd {
  DecodeGroup group;
  DecodeItem item;
};
static_assert(sizeof(DecodeEnd) == 32);

/// The first two items a block works on: their queries wait in its shared memory.
struct DecodeBlock {
  uint32_t item[2] = {DecodeRun::kNone, DecodeRun::kNone};
  uint32_t q_row[2] = {0, 0};  ///< sequence · num_q_heads + first_q_head
  uint32_t num_q_heads[2] = {0, 0};
  uint32_t groups = 0;  ///< index of its first group
  uint32_t num_groups = 0;
};
static_assert(sizeof(DecodeBlock) == 32);

struct DecodePlan {
  DecodeShape shape;
  DecodeGrid grid;
  std::vector<DecodeRun> runs;
  std::vector<DecodeBlock> blocks;  ///< [num_blocks]
  std::vector<DecodeGroup> groups;  ///< by block
  std::vector<DecodeItem> items;
  uint32_t num_slots = 0;

  /// The plan as one buffer for the GPU: the vectors above, groups as ends, each at a multiple of 16 bytes.
  struct Offsets {
    size_t runs = 0;
    size_t blocks = 0;
    size_t ends = 0;
    size_t end = 0;
  };
  Offsets DeviceOffsets() const;
  std::vector<DecodeEnd> Ends() const;
  size_t DeviceBytes() const { return DeviceOffsets().end; }
  void CopyTo(std::span<std::byte> bytes) const;  ///< Requires bytes.size() >= DeviceBytes()
};

/// Cut the work of all (sequence, KV head, query group) items into one contiguous share a warp, of equal cost.
///
/// Shapes   segments: those of sequence s are [sequence_segments[s], sequence_segments[s + 1])
/// Ensures  every visible tile of every item lies in exactly one run; deterministic
/// Errors   kModelUnsupported: a shape no kernel has; kInvalidArgument: a sequence without visible tokens, a pair
///          segment that is not whole pages
Result<DecodePlan> PlanDecode(const DecodeShape& shape, std::span<const DecodeSegment> segments,
                              std::span<const uint32_t> sequence_segments, const DecodeCosts& costs,
                              const DecodeGrid& grid);

}  // namespace kvant::kernels::cuda
