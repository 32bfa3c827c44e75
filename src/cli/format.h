#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::cli {

/// Text of a file, a path or a peer, safe for a terminal: control characters, marks that turn the writing direction,
/// and bytes that are no UTF-8 are shown by number ("\\x1b", "\\u202e").
std::string Printable(std::string_view text);

/// Rows of cells as an aligned table, two blanks between columns, a line break after each row. Cells are made
/// Printable. The first column is set to the left, the others to the right; with `header` the first row is underlined.
/// Rows may be short.
std::string FormatTable(std::vector<std::vector<std::string>> rows, bool header);

/// "812 B", "13.8 MB": decimal units, three figures.
std::string FormatBytes(uint64_t bytes);

}  // namespace kvant::cli
