#include "cli/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace kvant::cli {
namespace {

// Columns on a terminal, for text without wide or combining characters: bytes that begin a UTF-8 character.
size_t WidthOf(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

std::vector<size_t> ColumnWidths(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], WidthOf(row[column]));
    }
  }
  return widths;
}

std::string FormatRow(const std::vector<std::string>& row, const std::vector<size_t>& widths) {
  std::string line;
  for (size_t column = 0; column < row.size(); ++column) {
    const std::string padding(widths[column] - WidthOf(row[column]), ' ');
    line += column == 0 ? row[column] + padding : "  " + padding + row[column];
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string FormatTable(const std::vector<std::vector<std::string>>& rows, bool header) {
  const std::vector<size_t> widths = ColumnWidths(rows);
  std::string table;
  for (const auto& row : rows) {
    table += FormatRow(row, widths);
    if (header && &row == &rows.front()) {
      std::vector<std::string> rules;
      for (const size_t width : widths) {
        rules.emplace_back(width, '-');
      }
      table += FormatRow(rules, widths);
    }
  }
  return table;
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) {
    return fmt::format("{} B", bytes);
  }
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5) {  // 999.5 would be shown as 1000
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

}  // namespace kvant::cli
