#include "cli/precision_list.h"

#include <string>

namespace kvant::cli {

std::vector<std::string> SplitPrecisionList(std::string_view list) {
  std::vector<std::string> words;
  while (true) {
    const std::string_view part = list.substr(0, list.find(','));
    const bool is_option = part.find('=') < part.find(':');
    if (is_option && !words.empty()) {
      words.back().append(1, ',').append(part);
    } else {
      words.emplace_back(part);
    }
    if (part.size() == list.size()) {
      return words;
    }
    list.remove_prefix(part.size() + 1);
  }
}

Result<std::vector<codec::Precision>> ParsePrecisionList(std::string_view list) {
  std::vector<codec::Precision> precisions;
  for (const std::string& word : SplitPrecisionList(list)) {
    KVANT_ASSIGN_OR_RETURN(const codec::Precision precision, codec::ParsePrecision(word));
    precisions.push_back(precision);
  }
  return precisions;
}

Result<std::vector<codec::Precision>> ParsePlainPrecisionList(std::string_view list) {
  KVANT_ASSIGN_OR_RETURN(std::vector<codec::Precision> precisions, ParsePrecisionList(list));
  for (const codec::Precision& precision : precisions) {
    if (precision.spectrum) {
      return Status(StatusCode::kInvalidArgument,
                    "precision '" + codec::PrecisionWord(precision) +
                        "': there is no prompt here to choose tiers by; its tiers are fp16, int8 and int4");
    }
    if (precision.pairs) {
      return Status(StatusCode::kInvalidArgument,
                    "precision '" + codec::PrecisionWord(precision) +
                        "' has pages, not rows; bench attention and bench pack measure them");
    }
  }
  return precisions;
}

}  // namespace kvant::cli
