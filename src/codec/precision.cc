#include "kvant/codec/precision.h"

#include <charconv>
#include <vector>

#include "kvant/codec/pair_block.h"
#include "kvant/codec/pair_precision.h"
#include "kvant/codec/reference_words.h"
#include "kvant/codec/tiers.h"

namespace kvant::codec {
namespace {

std::vector<std::string_view> SplitAtCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(comma + 1);
  }
}

Status Invalid(std::string_view word, std::string_view option, std::string_view why) {
  return {StatusCode::kInvalidArgument,
          "precision '" + std::string(word) + "': option '" + std::string(option) + "' " + std::string(why)};
}

bool ParseCount(std::string_view text, uint32_t largest, uint32_t* count) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *count);
  return error == std::errc() && rest == end && *count <= largest;
}

Status ApplyOption(std::string_view word, std::string_view option, Precision* precision) {
  const size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : option.substr(equals + 1);
  if (name == "eq") {
    if (value != "on" && value != "off" && value != "model") {
      return Invalid(word, option, "must be eq=on, eq=off or eq=model");
    }
    precision->equalize = value != "off";
    precision->maps_of_model = value == "model";
    return OkStatus();
  }
  if (name == "sinks") {
    return ParseCount(value, Precision::kMaxSinks, &precision->num_sinks)
               ? OkStatus()
               : Invalid(word, option, "must be sinks=N with N from 0 to 128");
  }
  if (name == "residual") {
    if (value == "inf") {
      precision->residual = Precision::kEndlessResidual;
      return OkStatus();
    }
    return ParseCount(value, Precision::kDefaultResidual, &precision->residual) && precision->residual > 0
               ? OkStatus()
               : Invalid(word, option, "must be residual=N with N from 1 to 128, or residual=inf");
  }
  if (precision->spectrum) {
    return ApplySpectrumOption(name, value, &*precision->spectrum).WithContext("precision '" + std::string(word) + "'");
  }
  return Invalid(word, option, "is unknown; known are eq=, sinks=, residual=");
}

// What stands before the first comma.
Status ParseKind(std::string_view word, std::string_view kind, Precision* precision) {
  if (kind == "int8" || kind == "int4") {
    precision->codec = kind == "int8" ? TokenCodec::kInt8 : TokenCodec::kInt4Affine;
    return OkStatus();
  }
  Result<std::optional<Spectrum>> spectrum = ParseSpectrum(kind);
  KVANT_RETURN_IF_ERROR(spectrum.status().WithContext("precision '" + std::string(word) + "'"));
  precision->spectrum = *spectrum;
  if (precision->spectrum) {
    return OkStatus();
  }
  return {StatusCode::kPrecisionUnsupported, "unknown precision '" + std::string(word) +
                                                 "'; known are fp16, int8, int4, spectrum:b=B, "
                                                 "progressive:b=B, pdtrim:B, sws:B, pnmix:H/L@R%, pairs:B"};
}

Result<Precision> ParsePairs(std::string_view word) {
  Precision precision;
  KVANT_ASSIGN_OR_RETURN(precision.pairs, ParsePairPrecision(word));
  if (precision.pairs->residual != precision.pairs->page_tokens) {
    return Invalid(word, "residual=" + std::to_string(precision.pairs->residual),
                   "is not a page: tokens wait until they fill one, of g= tokens");
  }
  precision.equalize = false;
  precision.maps_of_model = precision.pairs->map_of_model;
  precision.num_sinks = precision.pairs->num_sinks;
  precision.residual = precision.pairs->page_tokens;
  return precision;
}

}  // namespace

Result<Precision> ParsePrecision(std::string_view word) {
  if (IsPairWord(word)) {
    return ParsePairs(word);
  }
  if (IsReferenceWord(word)) {
    return Status(StatusCode::kPrecisionUnsupported,
                  "precision '" + std::string(word) + "' is a reference that eval scores; no cache can hold it");
  }
  const std::vector<std::string_view> parts = SplitAtCommas(word);
  Precision precision;
  if (parts[0] == "fp16") {
    if (parts.size() > 1) {
      return Invalid(word, parts[1], "has no meaning for fp16");
    }
    return Precision{TokenCodec::kFp16, false, 0, Precision::kEndlessResidual};
  }
  KVANT_RETURN_IF_ERROR(ParseKind(word, parts[0], &precision));
  std::vector<std::string_view> seen;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string_view name = parts[i].substr(0, parts[i].find('='));
    for (const std::string_view earlier : seen) {
      if (earlier == name) {
        return Invalid(word, parts[i], "is given twice");
      }
    }
    seen.push_back(name);
    KVANT_RETURN_IF_ERROR(ApplyOption(word, parts[i], &precision));
  }
  precision.codec = CodecOf(TierOf(precision.codec), precision.equalize);
  if (precision.spectrum) {
    KVANT_RETURN_IF_ERROR(CheckSpectrum(*precision.spectrum).WithContext("precision '" + std::string(word) + "'"));
    if (precision.spectrum->progressive && !precision.equalize) {
      return Invalid(word, "eq=off", "has no meaning for progressive: 4-bit planes need equalized keys");
    }
  }
  return precision;
}

Status CheckPrecision(const Precision& precision, uint32_t head_dim) {
  const Status status = precision.pairs              ? CheckPairFormat(precision.pairs->FormatOf(head_dim))
                        : precision.has_int4_pages() ? CheckPairFormat(Int4PageFormat(head_dim).format)
                                                     : CheckHeadDim(head_dim);
  return status.WithContext("precision '" + PrecisionWord(precision) + "'");
}

std::string PrecisionWord(const Precision& precision) {
  if (precision.is_exact()) {
    return "fp16";
  }
  if (precision.pairs) {
    return PairPrecisionWord(*precision.pairs);
  }
  const Precision defaults;
  std::string word = precision.spectrum                     ? SpectrumWord(*precision.spectrum)
                     : precision.codec == TokenCodec::kInt8 ? "int8"
                                                            : "int4";
  if (!precision.equalize || precision.maps_of_model) {
    word += precision.equalize ? ",eq=model" : ",eq=off";
  }
  if (precision.num_sinks != defaults.num_sinks) {
    word += ",sinks=" + std::to_string(precision.num_sinks);
  }
  if (precision.residual == Precision::kEndlessResidual) {
    word += ",residual=inf";
  } else if (precision.residual != defaults.residual) {
    word += ",residual=" + std::to_string(precision.residual);
  }
  return word;
}

}  // namespace kvant::codec
