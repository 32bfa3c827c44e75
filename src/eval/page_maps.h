#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/plain_head.h"
#include "kvant/codec/pair_precision.h"
#include "kvant/policy/pair_statistics.h"

// Pages each of which has a map of its own: no cache holds them.
namespace kvant::eval {

/// Whole pages of a head's tokens: [begin, end) by position.
struct PageSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

/// The widths of a page's channels by their mean magnitudes in it. Shapes  result [head_dim]
std::vector<uint32_t> WidthsOfPage(const codec::PairPrecision& precision, const PlainHead& exact, PageSpan page);

/// Chooses widths page by page, of all that has been seen until then.
class Reselection {
 public:
  /// `queries` of the whole prompt, of all query heads; those of the KV head are heads [first_head, first_head +
  /// count). Shapes  queries [tokens, num_q_heads, head_dim]
  Reselection(const codec::PairPrecision& precision, codec::PairLayout pairs, const PlainHead& exact,
              std::span<const Half> queries, uint32_t num_q_heads, uint32_t first_head, uint32_t count)
      : precision_(precision),
        exact_(exact),
        queries_(queries),
        num_q_heads_(num_q_heads),
        first_head_(first_head),
        count_(count),
        statistics_(pairs, exact.head_dim) {}

  /// Pages in their order. Shapes  result [head_dim]
  std::vector<uint32_t> WidthsOf(PageSpan page, uint64_t seed);

 private:
  void AddQueriesUntil(uint32_t end);

  const codec::PairPrecision& precision_;
  const PlainHead& exact_;
  std::span<const Half> queries_;
  uint32_t num_q_heads_;
  uint32_t first_head_;
  uint32_t count_;
  uint32_t num_seen_ = 0;
  policy::PairStatistics statistics_;
};

/// The keys of tokens at `positions`, one group a channel, as they are read: from `exact` into `head`.
/// Shapes  widths [head_dim]
void RoundTripKeys(codec::KeyRule rule, std::span<const uint32_t> widths, std::span<const uint32_t> positions,
                   const PlainHead& exact, PlainHead* head);

}  // namespace kvant::eval
