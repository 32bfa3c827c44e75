#include <algorithm>
#include <cmath>

#include "cache/row_buffer.h"
#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"
#include "kvant/kernels/equalize.h"

namespace kvant::cache {
namespace {

float Norm(const Half* row, uint32_t head_dim) {
  float sum = 0;
  for (uint32_t c = 0; c < head_dim; ++c) {
    const float x = ToFloat(row[c]);
    sum += x * x;
  }
  return std::sqrt(sum);
}

}  // namespace

struct LayerCache::EncodeBuffers {
  explicit EncodeBuffers(uint32_t head_dim)
      : keys(size_t{kBatchTokens} * head_dim),
        values(keys.size()),
        tier_keys(keys.size()),
        tier_values(keys.size()),
        page_keys(size_t{codec::kInt4PageTokens} * head_dim),
        page_values(page_keys.size()),
        coded_keys(kBatchTokens, head_dim),
        coded_values(kBatchTokens, head_dim) {}

  /// Gathered int4 rows beyond the first ones, which keep rows, go to pages. Returns how many keep rows.
  uint32_t FillPages(const EncodeSink& sink, uint32_t rows, uint32_t head_dim) {
    const uint32_t kept = std::min(rows, sink.num_int4_rows - num_int4_kept);
    num_int4_kept += kept;
    for (uint32_t i = kept; i < rows; ++i) {
      const size_t slot = size_t{num_paged % codec::kInt4PageTokens} * head_dim;
      std::copy_n(&tier_keys[size_t{i} * head_dim], head_dim, &page_keys[slot]);
      std::copy_n(&tier_values[size_t{i} * head_dim], head_dim, &page_values[slot]);
      if (++num_paged % codec::kInt4PageTokens == 0) {
        sink.page(num_paged / codec::kInt4PageTokens - 1, page_keys.data(), page_values.data());
      }
    }
    return kept;
  }

  /// The batch's rows of one tier together; returns how many there are.
  uint32_t Gather(codec::Tier tier, std::span<const codec::Tier> tiers, uint32_t head_dim) {
    uint32_t rows = 0;
    for (size_t i = 0; i < tiers.size(); ++i) {
      if (tiers[i] == tier) {
        std::copy_n(&keys[i * head_dim], head_dim, &tier_keys[size_t{rows} * head_dim]);
        std::copy_n(&values[i * head_dim], head_dim, &tier_values[size_t{rows} * head_dim]);
        ++rows;
      }
    }
    return rows;
  }

  std::vector<Half> keys;  ///< a batch, exact
  std::vector<Half> values;
  std::vector<Half> tier_keys;  ///< those of one tier
  std::vector<Half> tier_values;
  std::vector<Half> page_keys;  ///< of the int4 tier, until there are enough
  std::vector<Half> page_values;
  uint32_t num_int4_kept = 0;
  uint32_t num_paged = 0;
  RowBuffer coded_keys;
  RowBuffer coded_values;
  Planes planes;
};

uint32_t LayerCache::num_due(codec::PromptTail tail) const {
  const uint32_t target = codec::SplitPrompt(precision_, num_tokens(), tail).num_encoded;
  return target - std::min(target, num_encoded());
}

uint32_t LayerCache::num_unreachable_residual() const {
  const uint32_t before = sinks_.num_tokens() + num_encoded();
  return num_unreachable() - std::min(num_unreachable(), before);
}

uint32_t LayerCache::num_skipped_due(codec::PromptTail tail) const {
  return num_encoded() > 0 ? 0
                           : num_due(tail) - codec::SplitPrompt(precision_, num_tokens(), tail, window_).num_encoded;
}

// Of what is in reach, or of the last tokens where that is too little.
codec::Equalization LayerCache::MeasureEqualization(ThreadPool* pool) const {
  codec::EqualizationBuilder builder(shape_.num_kv_heads, shape_.head_dim);
  const uint32_t spare = residual_.num_tokens() - std::min(residual_.num_tokens(), codec::kMinEqualizationTokens);
  const uint32_t first = std::min(num_unreachable_residual(), spare);
  const uint32_t count = residual_.num_tokens() - first;
  const kernels::EqualizeKernels& kernels = kernels::EqualizeKernelsOf(isa_);
  ForEachHead(pool, [&](uint32_t kv_head) {
    std::vector<Half> keys(size_t{kBatchTokens} * shape_.head_dim);
    const codec::KeyStats stats = builder.stats(kv_head);
    for (uint32_t done = 0; done < count; done += kBatchTokens) {
      const uint32_t batch = std::min(kBatchTokens, count - done);
      LoadRun(residual_, kv_head, first + done, batch, keys.data(), /*values=*/nullptr);
      kernels.add_keys(shape_.head_dim, keys.data(), batch, stats.sums.data(), stats.lows.data(), stats.highs.data());
    }
  });
  return builder.Finish(count);
}

std::vector<std::vector<float>> LayerCache::ResidualNorms(ThreadPool* pool) const {
  const uint32_t count = residual_.num_tokens();
  const uint32_t head_dim = shape_.head_dim;
  std::vector<std::vector<float>> norms(shape_.num_kv_heads, std::vector<float>(count));
  ForEachHead(pool, [&](uint32_t kv_head) {
    std::vector<Half> keys(size_t{kBatchTokens} * head_dim);
    std::vector<Half> values(keys.size());
    for (uint32_t done = 0; done < count; done += kBatchTokens) {
      const uint32_t batch = std::min(kBatchTokens, count - done);
      LoadRun(residual_, kv_head, done, batch, keys.data(), values.data());
      for (uint32_t i = 0; i < batch; ++i) {
        norms[kv_head][done + i] =
            Norm(&keys[size_t{i} * head_dim], head_dim) * Norm(&values[size_t{i} * head_dim], head_dim);
      }
    }
  });
  return norms;
}

void LayerCache::EncodeHead(const codec::Equalization* map, std::span<const codec::Tier> tiers, uint32_t kv_head,
                            uint32_t first, uint32_t count, const EncodeSink& sink) const {
  const uint32_t head_dim = shape_.head_dim;
  EncodeBuffers buffers(head_dim);
  std::array<uint32_t, codec::kNumStoredTiers> done_of{};
  for (uint32_t done = 0; done < count; done += kBatchTokens) {
    const uint32_t batch = std::min(kBatchTokens, count - done);
    if (tiers.empty()) {
      LoadRun(residual_, kv_head, first + done, batch, buffers.tier_keys.data(), buffers.tier_values.data());
      EncodeTier(map, codec::TierOf(precision_.codec), kv_head, batch, done, buffers, sink.rows);
      continue;
    }
    LoadRun(residual_, kv_head, first + done, batch, buffers.keys.data(), buffers.values.data());
    for (const codec::Tier tier : codec::kStoredTiers) {
      uint32_t rows = buffers.Gather(tier, tiers.subspan(done, batch), head_dim);
      if (tier == codec::Tier::kInt4) {
        rows = buffers.FillPages(sink, rows, head_dim);
      }
      if (rows > 0) {
        EncodeTier(map, tier, kv_head, rows, done_of[static_cast<size_t>(tier)], buffers, sink.rows);
        done_of[static_cast<size_t>(tier)] += rows;
      }
    }
  }
}

void LayerCache::EncodeTier(const codec::Equalization* map, codec::Tier tier, uint32_t kv_head, uint32_t count,
                            uint32_t first, EncodeBuffers& buffers, const RowSink& sink) const {
  const uint32_t head_dim = shape_.head_dim;
  const codec::TokenCodec codec = run(tier).layout().codec;
  const bool progressive = precision_.is_progressive();
  if (map != nullptr && (progressive || codec::HasScale(codec))) {
    kernels::EqualizeKernelsOf(isa_).equalize(head_dim, map->MeanOf(kv_head).data(), map->ScaleOf(kv_head).data(),
                                              buffers.tier_keys.data(), count);
  }
  const codec::RowFormat format =
      progressive ? codec::ProgressiveFormat(tier, head_dim) : codec::FormatOf(codec, head_dim);
  const codec::TokenRows keys = buffers.coded_keys.Rows(format, count);
  const codec::TokenRows values = buffers.coded_values.Rows(format, count);
  if (progressive) {
    EncodePlanes(*rows_, tier, head_dim, buffers.tier_keys.data(), count, buffers.planes, keys);
    EncodePlanes(*rows_, tier, head_dim, buffers.tier_values.data(), count, buffers.planes, values);
  } else {
    rows_->encode(codec, head_dim, buffers.tier_keys.data(), head_dim, count, keys);
    rows_->encode(codec, head_dim, buffers.tier_values.data(), head_dim, count, values);
  }
  sink(tier, first, count, Const(keys), Const(values));
}

Status LayerCache::EncodeDue(codec::PromptTail tail, ThreadPool* pool, const codec::TierMap* tiers) {
  const uint32_t count = num_due(tail);
  if (count == 0) {
    FreeUnreachable();
    return OkStatus();
  }
  const uint32_t skipped = num_skipped_due(tail);
  KVANT_CHECK(tiers == nullptr || (precision_.spectrum && tiers->counts.total() == count - skipped),
              "a tier a token that is due and in reach");
  if (precision_.pairs) {
    KVANT_RETURN_IF_ERROR(MoveToPages(skipped, count, pool));
    FreeUnreachable();
    return OkStatus();
  }
  if (precision_.equalize && !equalization_) {
    equalization_ = MeasureEqualization(pool);
  }
  KVANT_RETURN_IF_ERROR(MoveToEncoded(skipped, count, pool, tiers));
  FreeUnreachable();
  return OkStatus();
}

Status LayerCache::ExtendTiers(const codec::TierCounts& counts, uint32_t num_pages) {
  const uint32_t in_pages = num_pages * codec::kInt4PageTokens;
  codec::TierCounts rows = counts;
  rows.int4 -= in_pages;
  KVANT_RETURN_IF_ERROR(pages_.Extend(in_pages));
  for (const codec::Tier tier : codec::kStoredTiers) {
    if (Status status = run(tier).Extend(rows.of(tier)); !status.ok()) {
      pages_.Shrink(in_pages);
      for (const codec::Tier done : codec::kStoredTiers) {
        if (done == tier) {
          return status;
        }
        run(done).Shrink(rows.of(done));
      }
    }
  }
  num_dropped_ += counts.dropped;
  return OkStatus();
}

void LayerCache::AddPositions(std::span<const codec::Tier> tiers, uint32_t kv_head, uint32_t first_position,
                              uint32_t count, uint32_t num_int4_rows) {
  std::vector<int32_t> int4_rows;
  const auto positions_of = [&](codec::Tier tier) -> std::vector<int32_t>& {
    return positions_[static_cast<size_t>(tier)][kv_head];
  };
  const size_t in_pages = pages_.num_tokens();
  for (uint32_t i = 0; i < count; ++i) {
    const codec::Tier tier = tiers.empty() ? codec::TierOf(precision_.codec) : tiers[i];
    const auto position = static_cast<int32_t>(first_position + i);
    if (tier == codec::Tier::kInt4) {
      const bool is_paged = int4_rows.size() >= num_int4_rows && positions_of(tier).size() < in_pages;
      (is_paged ? positions_of(tier) : int4_rows).push_back(position);
    } else if (tier != codec::Tier::kDropped) {
      positions_of(tier).push_back(position);
    }
  }
  positions_of(codec::Tier::kInt4).insert(positions_of(codec::Tier::kInt4).end(), int4_rows.begin(), int4_rows.end());
}

// Of a spectrum they are dropped, else they keep slots.
Status LayerCache::SkipEncoded(uint32_t count) {
  if (precision_.spectrum) {
    num_dropped_ += count;
  } else if (count > 0) {
    KVANT_RETURN_IF_ERROR((precision_.pairs ? pages_ : run(codec::TierOf(precision_.codec))).Skip(count));
  }
  num_skipped_ += count;
  return OkStatus();
}

// The residual's first `count` tokens, of which the first `skipped` are out of reach.
Status LayerCache::MoveToEncoded(uint32_t skipped, uint32_t count, ThreadPool* pool, const codec::TierMap* tiers) {
  const codec::Equalization* map = equalization_ ? &*equalization_ : nullptr;
  codec::TierCounts counts;
  counts.of(codec::TierOf(precision_.codec)) = count - skipped;
  if (tiers != nullptr) {
    counts = tiers->counts;
  }
  const uint32_t num_pages = NumInt4Pages(counts);
  const uint32_t num_int4_rows = counts.int4 - num_pages * codec::kInt4PageTokens;
  KVANT_RETURN_IF_ERROR(SkipEncoded(skipped));
  const codec::TierCounts before = row_counts();
  const uint32_t first_position = sinks_.num_tokens() + num_encoded();
  KVANT_RETURN_IF_ERROR(ExtendTiers(counts, num_pages));
  num_int4_before_pages_ = num_pages > 0 ? num_int4_rows : num_int4_before_pages_;
  ForEachHead(pool, [&](uint32_t kv_head) {
    const std::span<const codec::Tier> ids = tiers == nullptr ? std::span<const codec::Tier>() : tiers->OfHead(kv_head);
    const auto store_rows = [&](codec::Tier tier, uint32_t first, uint32_t rows, const codec::ConstTokenRows& keys,
                                const codec::ConstTokenRows& values) {
      StoreTier(tier, kv_head, before.of(tier) + first, rows, keys, values);
    };
    const auto store_page = [&](uint32_t page, const Half* keys, const Half* values) {
      PackRows(kv_head, keys, values, {pages_.record(page, kv_head), pair_format_->page_bytes()});
    };
    EncodeHead(map, ids, kv_head, skipped, count - skipped, {store_rows, num_int4_rows, store_page});
    if (precision_.spectrum) {
      AddPositions(ids, kv_head, first_position, count - skipped, num_int4_rows);
    }
  });
  return DropResidualFront(count);
}

Status LayerCache::DropResidualFront(uint32_t count) {
  const uint32_t rest = residual_.num_tokens() - count;
  PageRun kept(residual_.layout(), shape_.num_kv_heads, account_);
  KVANT_RETURN_IF_ERROR(kept.Extend(rest));
  std::vector<Half> keys(size_t{kBatchTokens} * shape_.head_dim);
  std::vector<Half> values(keys.size());
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    for (uint32_t done = 0; done < rest; done += kBatchTokens) {
      const uint32_t batch = std::min(kBatchTokens, rest - done);
      LoadRun(residual_, kv_head, count + done, batch, keys.data(), values.data());
      StoreRun(kept, kv_head, done, batch, keys.data(), values.data(), shape_.head_dim);
    }
  }
  residual_ = std::move(kept);
  return OkStatus();
}

}  // namespace kvant::cache
