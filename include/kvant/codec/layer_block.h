#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kvant/codec/pair_block.h"
#include "kvant/codec/precision.h"
#include "kvant/codec/tiers.h"
#include "kvant/codec/token_codec.h"

namespace kvant::codec {

/// How many tokens of a prompt lie where in one layer, in position order: sinks (fp16), encoded, tail (fp16). Before
/// them come positions that the layer's window has left, of which there is nothing.
struct TokenSplit {
  uint32_t num_sinks = 0;
  uint32_t num_encoded = 0;
  uint32_t num_tail = 0;
  uint32_t num_skipped = 0;
  uint32_t total() const { return num_sinks + num_encoded + num_tail; }
  uint32_t num_positions() const { return num_skipped + total(); }
  friend bool operator==(const TokenSplit&, const TokenSplit&) = default;
};

/// What of a prompt is encoded at its end.
enum class PromptTail : uint8_t {
  kByPosition,  ///< whole runs of `residual` tokens beyond the sinks; the rest waits: a function of position alone.
                ///< With residual=inf the whole prompt is encoded and what is generated never is
  kEncodeAll,   ///< everything beyond the sinks: what is sent and what is evaluated
};

/// The split of a prompt. Without a map (fewer than kMinEqualizationTokens beyond the sinks) an equalized precision
/// encodes nothing yet.
TokenSplit SplitPrompt(const Precision& precision, uint32_t num_tokens, PromptTail tail);

/// The same in a layer whose queries see `window` tokens, 0: all: what the prompt's last query does not see is skipped,
/// of pair pages whole ones alone.
TokenSplit SplitPrompt(const Precision& precision, uint32_t num_tokens, PromptTail tail, uint32_t window);

/// What is left of a split whose first `count` positions are out of reach.
TokenSplit SkipFirst(TokenSplit split, uint32_t count);

/// Which of a KV head's int4 tokens lie in pages (Int4PageFormat) instead of rows: in order of position, those behind
/// the first `rows_before`. Tokens of later prompts have rows again.
struct Int4Pages {
  uint32_t rows_before = 0;
  uint32_t count = 0;
};

/// One layer of a prompt as contiguous bytes: the payload of a layer frame, and what a cache adopts.
/// Format: docs/format/wire.md, "Layer block". No padding: every section follows the one before.
///
///   [tier counts]           4 × u32: fp16, int8, int4, dropped; only with `tiers`
///   [pages]                 2 × u32: Int4Pages; only with `int4_pages`
///   [key_mean, key_scale]   num_kv_heads × head_dim fp16 each; only with `equalized`
///   then per KV head        sink keys, sink values           num_sinks rows fp16 each
///                           [tier ids]                       of the encoded tokens; only where the counts are mixed
///                           then for each tier, best first (without `tiers` there is one, of `codec`)
///                             key codes, scales, zeros       its rows, in position order
///                             value codes, scales, zeros
///                           [pages]                        of int4 tokens, which then have no rows
///                           tail keys, tail values           num_tail rows fp16 each
///
/// Of pair pages: [format, then a width map a KV head] (pair_block.h), and per KV head sink keys, sink values, pages in
/// order of position, tail keys, tail values.
struct LayerBlockLayout {
  CacheShape shape;
  TokenCodec codec = TokenCodec::kFp16;  ///< of all encoded tokens; with `tiers` of tokens generated later
  bool equalized = false;
  TokenSplit split;
  std::optional<TierCounts> tiers{};       ///< of the encoded tokens; their sum is split.num_encoded
  bool progressive = false;                ///< rows of tiers are cut off the progressive code (progressive.h)
  std::optional<Int4Pages> int4_pages{};   ///< where int4 tokens have some, with `tiers`
  std::optional<PairBlockFormat> pairs{};  ///< encoded tokens lie in pair pages, num_encoded a multiple of theirs

  /// The same counts with and without `tiers`.
  TierCounts counts() const;
  /// Tokens of a tier that have rows: those in pages have none.
  uint32_t rows_of(Tier tier) const { return counts().of(tier) - (tier == Tier::kInt4 ? num_int4_paged() : 0); }
  uint32_t num_int4_paged() const;
  TokenCodec codec_of(Tier tier) const { return tiers ? CodecOf(tier, equalized) : codec; }
  RowFormat format_of(Tier tier) const;
  size_t counts_bytes() const { return sizeof(uint32_t) * ((tiers ? kNumTiers : 0) + (int4_pages ? 2 : 0)); }
  size_t map_bytes() const;      ///< of mean and scale together
  size_t tier_id_bytes() const;  ///< of one KV head
  size_t pair_bytes() const;     ///< of the format and all width maps
  size_t page_bytes() const;     ///< of one KV head's page; 0 without any
  size_t pages_bytes() const;    ///< of one KV head's pages, a page that is partly skipped included
  size_t head_bytes() const;     ///< of one KV head's part
  size_t total_bytes() const { return counts_bytes() + pair_bytes() + map_bytes() + head_bytes() * shape.num_kv_heads; }
};

/// Rows of one tier of one KV head inside a block.
template <typename Byte>
struct LayerBlockTier {
  std::span<Byte> key_codes;
  std::span<Byte> key_scales;
  std::span<Byte> key_zeros;
  std::span<Byte> value_codes;
  std::span<Byte> value_scales;
  std::span<Byte> value_zeros;
};

/// The sections of one KV head inside a block. `Byte` is std::byte or const std::byte.
template <typename Byte>
struct LayerBlockHead {
  std::span<Byte> sink_keys;
  std::span<Byte> sink_values;
  std::span<Byte> tier_ids;
  std::array<LayerBlockTier<Byte>, kNumStoredTiers> tiers;
  std::span<Byte> pages;
  std::span<Byte> tail_keys;
  std::span<Byte> tail_values;
};

/// Requires block.size() == layout.total_bytes(). Halves inside may lie at odd multiples of 2: the block itself must be
/// aligned to 2 bytes, and every section then is, too.
LayerBlockHead<std::byte> HeadOf(const LayerBlockLayout& layout, std::span<std::byte> block, uint32_t kv_head);
LayerBlockHead<const std::byte> HeadOf(const LayerBlockLayout& layout, std::span<const std::byte> block,
                                       uint32_t kv_head);

/// What the block's bytes say of honest size: payload bits are codes and fp16 rows, effective bits everything.
BitsPerElement BitsOf(const LayerBlockLayout& layout);

}  // namespace kvant::codec
