#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvant::cli {

/// Rows of cells as an aligned table, two blanks between columns, a line break after each row. The first column is
/// set to the left, the others to the right; with `header` the first row is underlined. Rows may be short.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows, bool header);

/// "812 B", "13.8 MB": decimal units, three figures.
std::string FormatBytes(uint64_t bytes);

}  // namespace kvant::cli
