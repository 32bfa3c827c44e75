#include <algorithm>
#include <cmath>

#include "kernels/cpu/attend_driver.h"
#include "kvant/base/check.h"

namespace kvant::kernels {
namespace {

const std::byte* PageAt(const AttendSegment& segment, uint32_t first) {
  return segment.pages[first / segment.pair->format().page_tokens] + segment.record_offset;
}

PairTask TaskOf(const PairPlan& plan, const std::byte* page) {
  return {PageTaskOf(plan),   page, plan.format().ValueGroups(), plan.units().data(), plan.middles().data(),
          plan.sixes().data()};
}

}  // namespace

uint32_t PairTokens(const PairPlan& plan, uint32_t first, uint32_t end) {
  return std::min(plan.format().page_tokens, end - first);
}

Fetch PairFetch(const AttendSegment& segment, uint32_t first) {
  const std::byte* page = PageAt(segment, first);
  return {page, page + segment.pair->layout().total_bytes, nullptr, nullptr};
}

// Rows in the order of the plan's places, and sums of their own: channels lie elsewhere, and may be turned.
void RowAttention::BeginPairs(const AttendSegment& segment) {
  const PairPlan& plan = *segment.pair;
  if (pair_sums_ != nullptr && (pair_sums_ != &plan || pair_rotated_ != segment.rotated_values)) {
    FinishPairs();
  }
  if (pair_plan_ != &plan) {
    for (uint32_t b = 0; b < blocks_.size(); ++b) {
      pair_kernels_.prepare_rows(SourceOf(queries_, b, blocks_[b].num_rows), TaskOf(plan, nullptr), blocks_[b]);
    }
    pair_plan_ = &plan;
  }
  if (pair_sums_ != nullptr) {
    return;
  }
  for (RowBlock& block : blocks_) {
    block.pair.active = true;
    block.pair.value_places = pair_kernels_.value_places(TaskOf(plan, nullptr));
    block.pair.value_groups = plan.format().ValueGroups();
    std::fill_n(block.pair.out, size_t{block.num_rows} * block.pair.value_places, 0.0F);
    std::fill_n(block.pair.zero, size_t{block.num_rows} * block.pair.value_groups * kMaxLanes, 0.0F);
  }
  pair_sums_ = &plan;
  pair_rotated_ = segment.rotated_values;
}

void RowAttention::FinishPairs() {
  if (pair_sums_ == nullptr) {
    return;
  }
  for (RowBlock& block : blocks_) {
    pair_kernels_.finish(TaskOf(*pair_sums_, nullptr), pair_rotated_, block);
    block.pair.active = false;
  }
  pair_sums_ = nullptr;
}

// Page by page: each is turned into units of bytes once, if any row sees it, and met by all rows.
void RowAttention::AttendToPairSlice(const AttendSlice& slice, const AttendSlice* next) {
  const AttendSegment& segment = slice.segment;
  const PairPlan& plan = *segment.pair;
  KVANT_CHECK(slice.first_token % plan.format().page_tokens == 0, "a slice of pair pages begins at a page");
  BeginPairs(segment);
  const uint32_t end = slice.first_token + slice.num_tokens;
  for (uint32_t first = slice.first_token; first < end;) {
    const uint32_t num_tokens = PairTokens(plan, first, end);
    const PairTask task = TaskOf(plan, PageAt(segment, first));
    if (first + num_tokens < end) {
      stretch_->fetch = PairFetch(segment, first + num_tokens);
    } else if (next != nullptr) {
      stretch_->fetch = BeginFetch(*next, next->first_token);
    }
    bool is_loaded = false;
    for (uint32_t b = 0; b < blocks_.size(); ++b) {
      if (SetVisible(queries_, b * kRowBlock, segment, first, num_tokens, blocks_[b]) == 0) {
        continue;
      }
      if (!is_loaded) {
        pair_kernels_.load(task, *pair_memory_, *stretch_);
        is_loaded = true;
      }
      pair_kernels_.attend(task, blocks_[b], *pair_memory_, *stretch_);
    }
    first += num_tokens;
  }
}

}  // namespace kvant::kernels
