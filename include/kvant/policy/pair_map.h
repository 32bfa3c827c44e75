#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/codec/pair_precision.h"
#include "kvant/policy/pair_statistics.h"

namespace kvant::policy {

/// A score a pair, higher for what needs its bits more. `two_widths` is what kError compares; `seed` is kRandom's.
std::vector<double> PairScores(codec::PairScore rule, const codec::PairPrecision::TwoWidths& two_widths,
                               const PairStatistics& statistics, uint64_t seed);

/// The best ⌊percent · pairs / 100⌋ scores; ties to the lower index.
/// Shapes  scores, result [num_pairs]
std::vector<bool> SelectSalient(std::span<const double> scores, double percent);

/// Bits a pair, from 1 to max_bits: one bit more, again and again, for the pair that gains most by it, until
/// `total_bits` are given out; ties to the lower index. Errors need not fall evenly: a pair is judged by its best mean
/// gain a bit over the next few.
///
/// Shapes    errors [num_pairs][max_bits], of widths 1, 2, …; result [num_pairs]
/// Requires  num_pairs <= total_bits <= num_pairs · max_bits
std::vector<uint8_t> AllocateBits(std::span<const double> errors, uint32_t max_bits, uint32_t total_bits);

/// The width map of one KV head under a precision: PN-Mix's two widths, or bits by measured error or by
/// energy.
codec::WidthMap MakeWidthMap(const codec::PairPrecision& precision, const PairStatistics& statistics, uint64_t seed);

}  // namespace kvant::policy
