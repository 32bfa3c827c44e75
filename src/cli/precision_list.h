#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/precision.h"

namespace kvant::cli {

/// A list's words: a part with '=' and no ':' before it is an option of the word before.
std::vector<std::string> SplitPrecisionList(std::string_view list);

/// "int8,eq=off,int4" is int8,eq=off and int4.
/// Errors  those of codec::ParsePrecision
Result<std::vector<codec::Precision>> ParsePrecisionList(std::string_view list);

/// The same for what has no prompt, by which a spectrum could choose.
/// Errors  kInvalidArgument, too, where a word gives tokens to tiers
Result<std::vector<codec::Precision>> ParsePlainPrecisionList(std::string_view list);

}  // namespace kvant::cli
