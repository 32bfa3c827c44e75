#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvant/base/status.h"
#include "kvant/codec/pair_page.h"

namespace kvant::codec {

/// What says how many bits a pair gets (methods.md 3.13 and 10.4, lab.md section 4). The rules are in the policy layer.
enum class PairScore : uint8_t {
  kNormProduct,  ///< mean query pair norm × mean key pair norm: PN-Mix
  kKeyNorm,      ///< mean key pair norm
  kEnergySum,    ///< mean squared query pair norm + mean squared key pair norm: Block-GTQ. Of pairs:B
                 ///< each bit more quarters it
  kQueryRange,   ///< mean |q| × range of the keys, of both channels
  kMagnitude,    ///< mean |k| of both channels: Kitty
  kRange,        ///< range of the keys, of both channels
  kError,        ///< mean q² × what the lower width loses, as measured
  kRandom,       ///< the same for the same layer and head
};

/// A precision word of pair pages, parsed; a kind of its own beside Precision, whose words name token tiers.
///
/// Grammar   pnmix:H/L@R% | pairs:B, then options after commas:
///             v=2|3|4|8    value bits           vg=N          channels of a value group; default the head
///             g=32|64|128  tokens of a page     rec=minmax|midrise  of keys     vrec=minmax|midrise  of values
///             one=quarter|ends|means  points of keys of one bit
///             vrot=on|off  values turned by a Hadamard matrix
///             rule=qk|k|energy|qrange|magnitude|range|error|random; of pairs:B error|energy
///             map=prompt|model, sinks=N, residual=N
/// Defaults  pnmix (the paper): v=2, rule=qk, min-max, vrot=off
///           pairs (lab.md section 10): v=4, rule=error, keys mid-rise; values of 2 or 3 bits turned and mid-rise
struct PairPrecision {
  /// PN-Mix's two widths; without it `bits` a channel on the mean, given out by measured error, or by energy.
  struct TwoWidths {
    uint32_t high = 3;
    uint32_t low = 1;
    double percent = 50;  ///< of the pairs, at `high`; rounded down to whole pairs
    friend bool operator==(const TwoWidths&, const TwoWidths&) = default;
  };
  std::optional<TwoWidths> two_widths{};
  double bits = 2.0;
  PairScore score = PairScore::kError;
  uint32_t page_tokens = 128;
  uint32_t value_bits = 4;
  uint32_t value_group = 0;  ///< 0: the whole head
  PairRule key_rule = PairRule::kMidRise;
  PairRule value_rule = PairRule::kMinMax;
  OneBitRule one_bit = OneBitRule::kQuarterPoints;
  bool rotate_values = false;
  bool map_of_model = false;  ///< one map for all prompts, from the model's profile
  uint32_t num_sinks = 32;
  uint32_t residual = 128;

  static constexpr uint32_t kMaxSinks = 128;

  KeyRule KeyRuleOf() const { return {key_rule, one_bit}; }
  PairFormat FormatOf(uint32_t head_dim) const {
    return {head_dim, page_tokens, value_bits, value_group == 0 ? head_dim : value_group,
            key_rule, value_rule,  one_bit};
  }
  friend bool operator==(const PairPrecision&, const PairPrecision&) = default;
};

/// Whether a word is of this kind: what stands before its first colon says so.
bool IsPairWord(std::string_view word);

/// Errors  kPrecisionUnsupported: a word of another kind; kInvalidArgument: a part that is unknown, repeated, out of
///         range or without meaning, named
Result<PairPrecision> ParsePairPrecision(std::string_view word);

/// The shortest word that parses to the same.
std::string PairPrecisionWord(const PairPrecision& precision);

std::string_view PairScoreName(PairScore score);

}  // namespace kvant::codec
