#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/codec/pair_page.h"
#include "kvant/kernels/cpu.h"

namespace kvant::kernels {

/// What kernels need of a format and a width map, worked out once for all pages of the map. Pages themselves are as
/// docs/format/pair-pages.md has them, byte for byte: the CPU reads what is sent and stored.
class PairPlan {
 public:
  /// Requires CheckPairFormat(format, map).ok()
  PairPlan(const codec::PairFormat& format, codec::WidthMap map);

  const codec::PairFormat& format() const { return format_; }
  const codec::WidthMap& map() const { return map_; }
  const codec::PairPageLayout& layout() const { return layout_; }

  /// The channel at each place, wider ones first (codec::ChannelOrder), and its bits.
  std::span<const uint16_t> order() const { return std::span(order_).first(format_.head_dim); }
  std::span<const uint8_t> widths() const { return widths_; }
  /// Numbers of the planes in the page, plane 0 of place 0 first, then plane 1 of place 0, …; a plane has
  /// page_tokens / 8 bytes.
  std::span<const uint16_t> planes() const { return planes_; }
  /// Of codes whose highest bit is moved to bit 3, by place: the old code's unit, and half of the largest.
  std::span<const float> units() const { return units_; }
  std::span<const float> middles() const { return middles_; }
  /// The planes of every six places, as rows of bits that are looked up together: the highest planes of the six, the
  /// next lower ones, …, as many as the widest place has; kNoPlane for places that are narrower or beyond the last.
  std::span<const uint16_t> sixes() const { return sixes_; }
  static constexpr uint16_t kNoPlane = 0xFFFF;

 private:
  codec::PairFormat format_;
  codec::WidthMap map_;
  codec::PairPageLayout layout_;
  std::vector<uint16_t> order_;  ///< filled up to a multiple of 32
  std::vector<uint8_t> widths_;
  std::vector<uint16_t> planes_;
  std::vector<float> units_;
  std::vector<float> middles_;
  std::vector<uint16_t> sixes_;
};

/// Rows into one page: the bytes of codec::EncodePairPageRef and SerializePairPage, on every instruction set.
///
/// Shapes   keys, values [page_tokens, head_dim] fp16, rows `stride` elements apart; page [layout().total_bytes]
/// Requires finite input
/// Threads  pure; one
void PackPairPage(Isa isa, const PairPlan& plan, const Half* keys, const Half* values, size_t stride,
                  std::span<std::byte> page);

/// Rows of values turned by codec::RotateRow and rounded to fp16: what a page with AttendSegment::rotated_values is
/// packed from. The same values on every instruction set. Requires head_dim a multiple of 16 up to 256; src may be dst.
void RotateValueRows(Isa isa, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_rows, Half* dst,
                     size_t dst_stride);

}  // namespace kvant::kernels
