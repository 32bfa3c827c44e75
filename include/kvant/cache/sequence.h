#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvant/base/thread_pool.h"
#include "kvant/cache/chunk_borders.h"
#include "kvant/cache/memory.h"
#include "kvant/cache/page_run.h"
#include "kvant/codec/equalization.h"
#include "kvant/codec/layer_block.h"
#include "kvant/codec/layer_maps.h"
#include "kvant/codec/precision.h"
#include "kvant/codec/progressive.h"
#include "kvant/kernels/attend.h"
#include "kvant/kernels/pair_pages.h"
#include "kvant/kernels/rows.h"

namespace kvant::cache {

/// The slices of one chunk: at most the sinks, encoded tokens and the residual.
struct ChunkSlices {
  std::array<kernels::AttendSlice, 3> slices;
  uint32_t count = 0;
  std::span<const kernels::AttendSlice> span() const& { return {slices.data(), count}; }
  std::span<const kernels::AttendSlice> span() const&& = delete;  // would outlive the slices in a range-for
};

/// The KV of one layer of one sequence: sinks (fp16), encoded tokens, residual (fp16), in this order of position.
/// New tokens enter the residual at fp16 (the first ones the sinks) and leave it encoded, once. Encoded tokens lie in
/// one run a tier, of one tier only unless the precision is a spectrum; dropped ones nowhere, but their positions are
/// taken. With pair pages the encoded tokens lie in those, each packed when its tokens are there.
///
/// Threads  StoreExact of different KV heads may run at once, and so may any number of readers of what is stored;
///          everything else is for one thread
class LayerCache {
 public:
  LayerCache(const codec::CacheShape& shape, const codec::Precision& precision, kernels::Isa isa,
             MemoryAccount* account);

  /// The same tokens, in pages that both share until one of them writes (PageRun::Fork).
  LayerCache Fork() const;

  const codec::CacheShape& shape() const { return shape_; }
  const codec::Precision& precision() const { return precision_; }
  /// Positions taken, those of dropped tokens included.
  uint32_t num_tokens() const { return sinks_.num_tokens() + num_encoded() + residual_.num_tokens(); }
  codec::TokenSplit split() const { return {sinks_.num_tokens(), num_encoded(), residual_.num_tokens()}; }
  uint32_t window() const { return window_; }
  /// Tokens beyond the sinks that had left the window before the first was encoded: they count as encoded, but of a
  /// spectrum they have no tier, and nothing is stored of them.
  uint32_t num_skipped() const { return num_skipped_; }
  /// Of the encoded tokens that have a tier: of pair pages none.
  codec::TierCounts tier_counts() const;
  /// What holds them: the layout of a block with the same tokens.
  codec::LayerBlockLayout block_layout() const;

  /// The layer's queries see so many tokens, their own included; 0: all. What has left the window by the newest token
  /// is hidden from every later query: pages that hold nothing else are freed at once, and after every EncodeDue.
  void SetWindow(uint32_t tokens);
  void FreeUnreachable();
  /// How many of the first tokens have left the window.
  uint32_t num_unreachable() const { return window_ == 0 ? 0 : num_tokens() - std::min(num_tokens(), window_); }
  /// Tokens the newest token's query sees.
  uint32_t num_reachable() const { return num_tokens() - num_unreachable(); }
  /// block_layout of those alone, dropped ones not counted out; of a spectrum's tiers a mean over the KV heads.
  codec::LayerBlockLayout reachable_layout() const;
  uint64_t allocated_bytes() const;
  /// Bytes that the reachable tokens themselves need, metadata included, spare slots of pages not.
  uint64_t stored_bytes() const;
  const std::optional<codec::Equalization>& equalization() const { return equalization_; }

  /// Add slots for tokens whose rows StoreExact will bring.
  Status ExtendExact(uint32_t count);
  /// Take back the last `count` tokens; only tokens still at fp16 can go.
  Status ShrinkExact(uint32_t count);

  /// The longest beginning of at most `tokens` tokens that this layer can be cut back to, so that it is as if nothing
  /// had followed: any that ends within what is still at fp16; a whole number of encoding steps where codes depend on
  /// no later token (maps of the model, or none); none where a window has let go of what earlier tokens would see.
  uint32_t ReusableTokens(uint32_t tokens) const;
  /// Cut back to that beginning. Requires tokens == ReusableTokens(tokens)
  void KeepFirst(uint32_t tokens);

  /// Forget all tokens and the map, and return their memory.
  void Clear();

  /// Store fp16 rows of tokens [first, first + count) of the sequence, which must lie in sinks or residual.
  /// Shapes  keys, values [count, head_dim], rows `stride` elements apart
  void StoreExact(uint32_t kv_head, uint32_t first, uint32_t count, const Half* keys, const Half* values,
                  size_t stride);

  /// How many bits every pair of a KV head's keys gets. Requires a precision of pair pages; nothing encoded yet, and it
  /// has to be called before anything is
  void SetPairMaps(codec::PairLayout pairs, std::span<const codec::WidthMap> maps);
  /// The maps by which keys are encoded, before any of them is: the model's. Requires those of the precision's kind
  void UseMaps(const codec::LayerMaps& maps);
  /// Those that were used or made; empty before.
  codec::LayerMaps maps() const;
  /// The equalization of the tokens that are still at fp16 beyond the sinks, at least one.
  codec::Equalization MeasureEqualization(ThreadPool* pool) const;
  /// fp16 keys of the residual, in order. Shapes  keys [count, head_dim]
  void LoadResidualKeys(uint32_t kv_head, uint32_t first, uint32_t count, Half* keys) const {
    LoadRun(residual_, kv_head, first, count, keys, nullptr);
  }

  /// How many tokens the precision's rule says are to be encoded now: at the end of a prompt, or after a generated one.
  uint32_t num_due(codec::PromptTail tail) const;
  /// How many of these, when they are the first, have left the window already.
  uint32_t num_skipped_due(codec::PromptTail tail) const;
  /// Encode them, `tiers` says how, or the precision's codec where it is null.
  /// Fixes the equalization map when the first token is encoded. `pool` may be null.
  /// Requires tiers->counts.total() == num_due(tail) - num_skipped_due(tail)
  Status EncodeDue(codec::PromptTail tail, ThreadPool* pool, const codec::TierMap* tiers = nullptr);

  /// ‖k‖ · ‖v‖ of the tokens in the residual. Shapes  [num_kv_heads][tokens]
  std::vector<std::vector<float>> ResidualNorms(ThreadPool* pool) const;

  /// The layout of an encoded copy of this layer, whose tokens are all still at fp16; without those out of reach.
  codec::LayerBlockLayout PlanBlock(codec::PromptTail tail, const codec::TierMap* tiers = nullptr) const;
  /// Write that copy. Requires all tokens at fp16, layout from PlanBlock, block of its size and 2-byte aligned.
  void WriteBlock(const codec::LayerBlockLayout& layout, std::span<std::byte> block, ThreadPool* pool,
                  const codec::TierMap* tiers = nullptr) const;
  /// The planes that raise the tokens of a progressive block, written from `from` earlier, to the tiers of `to`.
  /// Requires what WriteBlock does, the same tokens as then; layout of from and to; block of its size
  void WriteUpgrade(const codec::UpgradeLayout& layout, const codec::TierMap& from, const codec::TierMap& to,
                    std::span<std::byte> block, ThreadPool* pool) const;
  /// The tiers of the first `num_tokens` encoded tokens that have one. Requires a spectrum, and so many
  codec::TierMap EncodedTiers(uint32_t num_tokens) const;
  /// Raise tokens in place: the cache is then as if the block had held them so.
  /// Errors  kMismatch: no progressive tiers, or another shape; kCorruption: ids that are not the cache's, raised by
  ///         the moves; kCapacityExceeded, kOutOfMemory. The cache is then as before
  Status AdoptUpgrade(const codec::UpgradeLayout& layout, std::span<const std::byte> block, ThreadPool* pool);

  /// Everything as it lies, as a block of block_layout(), what is out of reach as zeros; AdoptBlock makes it again.
  /// Requires no progressive code, block of the layout's size
  void ExportBlock(std::span<std::byte> block, ThreadPool* pool) const;
  /// Become what a block holds.
  /// Errors  kMismatch when shape or codec are not this cache's; kInvalidArgument when tokens are already stored;
  ///         kNumeric when a scale, zero, mean or exact row is not finite; kCorruption when tier ids and counts differ;
  ///         kMismatch when it was made by other maps than are used here
  Status AdoptBlock(const codec::LayerBlockLayout& layout, std::span<const std::byte> block);

  uint32_t num_chunks() const { return num_chunks_before(num_tokens()); }
  /// Chunks that the first `tokens` tokens lie in; at least 1.
  uint32_t num_chunks_before(uint32_t tokens) const;
  /// Chunks before it hold tokens at lower positions alone.
  uint32_t first_chunk_of(uint32_t position) const;
  /// No slices where all of the chunk was freed, and beyond the last.
  ChunkSlices Chunk(uint32_t kv_head, uint32_t chunk) const;

 private:
  static constexpr uint32_t kPageTokens = 128;   ///< of encoded and residual pages
  static constexpr uint32_t kBatchTokens = 128;  ///< rows handled at once: they stay in L1 and L2
  /// Takes `count` encoded rows of a tier, the first of which is the `first`-th of those being encoded to rows.
  using RowSink = std::function<void(codec::Tier tier, uint32_t first, uint32_t count,
                                     const codec::ConstTokenRows& keys, const codec::ConstTokenRows& values)>;
  /// Takes a page's worth of exact int4 tokens.
  using PageSink = std::function<void(uint32_t page, const Half* keys, const Half* values)>;
  /// Where a head's tokens go that are encoded: to rows, int4 ones beyond the first `num_int4_rows` to pages.
  struct EncodeSink {
    RowSink rows;
    uint32_t num_int4_rows = 0;
    PageSink page{};
  };
  struct EncodeBuffers;

  static std::array<PageRun, codec::kNumStoredTiers> MakeTierRuns(const codec::CacheShape& shape,
                                                                  const codec::Precision& precision,
                                                                  MemoryAccount* account);
  PageRun& run(codec::Tier tier) { return tiers_[static_cast<size_t>(tier)]; }
  const PageRun& run(codec::Tier tier) const { return tiers_[static_cast<size_t>(tier)]; }
  uint32_t num_encoded() const { return tier_counts().total() + (precision_.pairs ? pages_.num_tokens() : 0); }
  /// Tokens of tiers that have rows.
  codec::TierCounts row_counts() const;
  /// Pages that a first batch of so many tokens fills; a later one goes to rows.
  uint32_t NumInt4Pages(const codec::TierCounts& counts) const {
    return precision_.has_int4_pages() && num_encoded() == 0 ? counts.int4 / codec::kInt4PageTokens : 0;
  }
  /// How many of a head's tokens of a tier stand before a position: those with rows, and those in int4 pages.
  uint32_t TierRowsBefore(codec::Tier tier, uint32_t kv_head, uint32_t position) const;
  uint32_t PagedBefore(uint32_t kv_head, uint32_t position) const;

  kernels::AttendSegment SegmentOf(const PageRun& run, uint32_t kv_head, uint32_t first_position) const;
  kernels::AttendSegment TierSegment(codec::Tier tier, uint32_t kv_head) const;
  void StoreRun(PageRun& run, uint32_t kv_head, uint32_t first, uint32_t count, const Half* keys, const Half* values,
                size_t stride);
  /// Without values where `values` is null.
  void LoadRun(const PageRun& run, uint32_t kv_head, uint32_t first, uint32_t count, Half* keys, Half* values) const;
  /// Encoded rows into a run's slots from `first` on.
  void StoreRows(PageRun& run, uint32_t kv_head, uint32_t first, uint32_t count, const codec::ConstTokenRows& keys,
                 const codec::ConstTokenRows& values) const;
  /// body(kv_head) for every KV head, on the pool's threads where there is a pool.
  void ForEachHead(ThreadPool* pool, const std::function<void(uint32_t)>& body) const;
  /// Residual tokens [first, first + count), equalized where there is a map, encoded tier by tier, in order.
  void EncodeHead(const codec::Equalization* map, std::span<const codec::Tier> tiers, uint32_t kv_head, uint32_t first,
                  uint32_t count, const EncodeSink& sink) const;
  /// The first tokens of the residual that are out of reach.
  uint32_t num_unreachable_residual() const;
  Status SkipEncoded(uint32_t count);
  Status ReserveSlots(const codec::LayerBlockLayout& layout);
  /// The `count` rows gathered in the buffers, which are the `first`-th of their tier onward.
  void EncodeTier(const codec::Equalization* map, codec::Tier tier, uint32_t kv_head, uint32_t count, uint32_t first,
                  EncodeBuffers& buffers, const RowSink& sink) const;
  /// Rows of a tier as they stand in a block, into the tier's slots from `first` on.
  void StoreTier(codec::Tier tier, uint32_t kv_head, uint32_t first, uint32_t count, const codec::ConstTokenRows& keys,
                 const codec::ConstTokenRows& values);
  void ExportHead(const codec::LayerBlockLayout& layout, uint32_t kv_head, std::span<std::byte> block) const;
  /// All encoded rows of a run; what was released stays as it is in `keys` and `values`.
  void LoadRows(const PageRun& run, uint32_t kv_head, const codec::TokenRows& keys,
                const codec::TokenRows& values) const;
  /// Tier counts, pair format and maps, equalization map: what of them the layout has.
  void WriteBeforeHeads(const codec::LayerBlockLayout& layout, const codec::Equalization* map,
                        std::span<std::byte> block) const;
  static Status OtherMaps();
  void UsePairMaps(std::vector<codec::WidthMap> maps);
  kernels::AttendSegment PairSegment(uint32_t kv_head) const;
  void UseInt4Pages();
  void PackRows(uint32_t kv_head, const Half* keys, const Half* values, std::span<std::byte> page) const;
  void PackPage(uint32_t kv_head, uint32_t first, std::span<std::byte> page) const;
  Status MoveToPages(uint32_t skipped, uint32_t count, ThreadPool* pool);
  void WritePairHeader(std::span<std::byte> block) const;
  void WritePages(uint32_t kv_head, uint32_t first, std::span<std::byte> pages) const;
  Status AdoptPairHeader(const codec::LayerBlockLayout& layout, std::span<const std::byte> block);
  Status CheckInt4Pages(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) const;
  void AdoptPages(uint32_t kv_head, std::span<const std::byte> pages);
  struct RaisedHead;
  void RaiseHead(const codec::UpgradeHead<const std::byte>& planes, std::span<const codec::Tier> from,
                 std::span<const codec::Tier> to, uint32_t kv_head, RaisedHead* raised) const;
  /// Slots for rows of `counts` less those of the int4 tier's pages, and the pages.
  Status ExtendTiers(const codec::TierCounts& counts, uint32_t num_pages);
  void AddPositions(std::span<const codec::Tier> tiers, uint32_t kv_head, uint32_t first_position, uint32_t count,
                    uint32_t num_int4_rows);
  Status MoveToEncoded(uint32_t skipped, uint32_t count, ThreadPool* pool, const codec::TierMap* tiers);
  Status DropResidualFront(uint32_t count);
  void WriteHead(const codec::LayerBlockLayout& layout, const codec::Equalization* map, const codec::TierMap* tiers,
                 uint32_t kv_head, std::span<std::byte> block) const;
  void AdoptHead(const codec::LayerBlockLayout& layout, uint32_t kv_head, std::span<const std::byte> block);

  codec::CacheShape shape_;
  codec::Precision precision_;
  kernels::Isa isa_;
  const kernels::RowKernels* rows_;
  MemoryAccount* account_;
  std::optional<codec::Equalization> equalization_;
  PageRun sinks_;
  std::array<PageRun, codec::kNumStoredTiers> tiers_;  ///< the encoded tokens, by tier
  std::optional<codec::PairBlockFormat> pair_format_;
  std::vector<kernels::PairPlan> plans_;  ///< [num_kv_heads], once the maps are known
  PageRun pages_;                         ///< pair pages, or those of a spectrum's int4 tokens
  uint32_t num_dropped_ = 0;              ///< of a spectrum's, skipped ones included
  uint32_t num_skipped_ = 0;
  uint32_t num_int4_before_pages_ = 0;  ///< int4 tokens with rows that stand before those in pages
  PageRun residual_;
  uint32_t window_ = 0;
  /// With a spectrum, where each tier's tokens stand, those in pages first. Shapes  [tier][num_kv_heads][tokens]
  std::array<std::vector<std::vector<int32_t>>, codec::kNumStoredTiers> positions_;
};

/// The KV cache of one sequence. Its memory is returned to the account when it ends.
class Sequence {
 public:
  Sequence(const codec::CacheShape& shape, const codec::Precision& precision, kernels::Isa isa, MemoryAccount* account);

  const codec::CacheShape& shape() const { return shape_; }
  const codec::Precision& precision() const { return precision_; }
  LayerCache& layer(uint32_t index) { return layers_[index]; }
  const LayerCache& layer(uint32_t index) const { return layers_[index]; }

  /// The same tokens, in pages that both share until one of them writes: they need no memory of their own before. A
  /// fork draws on the same account.
  Sequence Fork() const;
  /// LayerCache::ReusableTokens for all layers together, and the cut.
  uint32_t ReusableTokens(uint32_t tokens) const;
  void KeepFirst(uint32_t tokens);

  /// SetWindow of every layer. Shapes  [num_layers]
  void SetWindows(std::span<const uint32_t> windows);
  /// Bytes that the reachable tokens would need at fp16.
  uint64_t reachable_bytes_fp16() const;

  /// Tokens whose KV every layer holds, reachable or not.
  uint32_t num_tokens() const { return layers_.back().num_tokens(); }
  uint64_t allocated_bytes() const;
  uint64_t stored_bytes() const;
  codec::BitsPerElement bits() const;

  /// One more token in every layer; on error none.
  Status ExtendExact(uint32_t count);
  Status ShrinkExact(uint32_t count);
  /// After a step that generated tokens. With residual=inf nothing is ever due, but windows move.
  Status EncodeDue(ThreadPool* pool);

 private:
  struct ForkTag {};
  Sequence(const Sequence& other, ForkTag);

  codec::CacheShape shape_;
  codec::Precision precision_;
  std::vector<LayerCache> layers_;
};

}  // namespace kvant::cache
