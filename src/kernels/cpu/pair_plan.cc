#include <utility>

#include "kernels/cpu/pair_page_task.h"
#include "kvant/base/check.h"
#include "kvant/kernels/pair_pages.h"

namespace kvant::kernels {

PairPlan::PairPlan(const codec::PairFormat& format, codec::WidthMap map)
    : format_(format), map_(std::move(map)), layout_(codec::PairPageLayout::Make(format_, map_)) {
  KVANT_CHECK(codec::CheckPairFormat(format_, map_).ok(), "formats are checked where they enter");
  // Number of each channel's planes: plane by plane, channels rising.
  std::vector<std::vector<uint16_t>> planes(format_.head_dim);
  uint16_t number = 0;
  for (uint32_t plane = 0; plane < codec::WidthMap::kMaxKeyBits; ++plane) {
    for (uint32_t c = 0; c < format_.head_dim; ++c) {
      if (map_.WidthOf(c) > plane) {
        planes[c].push_back(number++);
      }
    }
  }
  for (const uint32_t channel : codec::ChannelOrder(map_)) {
    order_.push_back(static_cast<uint16_t>(channel));
    widths_.push_back(static_cast<uint8_t>(map_.WidthOf(channel)));
    const auto levels = static_cast<float>(1U << map_.WidthOf(channel));
    units_.push_back(levels / 16.0F);
    middles_.push_back(8.0F - 8.0F / levels);
    planes_.insert(planes_.end(), planes[channel].begin(), planes[channel].end());
  }
  // A place's planes follow each other in planes_; places of no width fill the last six up.
  constexpr size_t kSix = 6;
  std::vector<size_t> ends;
  for (size_t place = 0, end = 0; place < widths_.size(); ++place) {
    ends.push_back(end += widths_[place]);
  }
  for (size_t first = 0; first < widths_.size(); first += kSix) {
    for (uint32_t level = 1; level <= widths_[first]; ++level) {
      for (size_t place = first; place < first + kSix; ++place) {
        const bool has_plane = place < widths_.size() && widths_[place] >= level;
        sixes_.push_back(has_plane ? planes_[ends[place] - level] : kNoPlane);
      }
    }
  }
  order_.resize((order_.size() + 31) / 32 * 32);
}

PairPageTask PageTaskOf(const PairPlan& plan) {
  const codec::PairFormat& format = plan.format();
  const codec::PairPageLayout& layout = plan.layout();
  return {format.head_dim,     format.page_tokens,   format.value_bits,    format.value_group,
          plan.order().data(), plan.widths().data(), plan.planes().data(), layout.key_scales,
          layout.key_zeros,    layout.value_codes,   layout.value_scales,  layout.value_zeros};
}

}  // namespace kvant::kernels
