#include "eval/page_maps.h"

#include <cmath>

#include "kvant/policy/pair_map.h"

namespace kvant::eval {

std::vector<uint32_t> WidthsOfPage(const codec::PairPrecision& precision, const PlainHead& exact, PageSpan page) {
  std::vector<double> magnitudes(exact.head_dim);
  for (uint32_t token = page.begin; token < page.end; ++token) {
    for (uint32_t c = 0; c < exact.head_dim; ++c) {
      magnitudes[c] += static_cast<double>(std::fabs(exact.key(token)[c]));
    }
  }
  std::vector<uint32_t> widths;
  for (const bool salient : policy::SelectSalient(magnitudes, precision.two_widths->percent)) {
    widths.push_back(salient ? precision.two_widths->high : precision.two_widths->low);
  }
  return widths;
}

std::vector<uint32_t> Reselection::WidthsOf(PageSpan page, uint64_t seed) {
  AddQueriesUntil(page.end);
  const size_t first = size_t{page.begin} * exact_.head_dim;
  std::vector<Half> keys(size_t{page.end - page.begin} * exact_.head_dim);
  ToHalf(std::span(exact_.keys).subspan(first, keys.size()), keys);
  statistics_.AddKeys(keys.data(), page.end - page.begin, exact_.head_dim);
  if (precision_.score == codec::PairScore::kError) {
    statistics_.AddKeyErrors(precision_.KeyRuleOf(), keys.data(), page.end - page.begin, exact_.head_dim);
  }
  const codec::WidthMap map = policy::MakeWidthMap(precision_, statistics_, seed);
  std::vector<uint32_t> widths;
  for (uint32_t c = 0; c < exact_.head_dim; ++c) {
    widths.push_back(map.WidthOf(c));
  }
  return widths;
}

void Reselection::AddQueriesUntil(uint32_t end) {
  std::vector<float> row(exact_.head_dim);
  for (; num_seen_ < end; ++num_seen_) {
    for (uint32_t head = first_head_; head < first_head_ + count_; ++head) {
      ToFloat(queries_.subspan((size_t{num_seen_} * num_q_heads_ + head) * exact_.head_dim, exact_.head_dim), row);
      statistics_.AddQueries(row.data(), 1, exact_.head_dim);
    }
  }
}

void RoundTripKeys(codec::KeyRule rule, std::span<const uint32_t> widths, std::span<const uint32_t> positions,
                   const PlainHead& exact, PlainHead* head) {
  std::vector<float> column(positions.size());
  for (uint32_t c = 0; c < exact.head_dim; ++c) {
    for (size_t i = 0; i < positions.size(); ++i) {
      column[i] = exact.key(positions[i])[c];
    }
    codec::RoundTripKeyGroup(rule, widths[c], column);
    for (size_t i = 0; i < positions.size(); ++i) {
      head->keys[size_t{positions[i]} * exact.head_dim + c] = column[i];
    }
  }
}

}  // namespace kvant::eval
