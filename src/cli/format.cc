#include "cli/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "kvant/engine/tokenizer.h"

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

// Bytes of the UTF-8 character at the front; 0 where there is none.
size_t FrontCharacterBytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const bool valid = engine::FindInvalidUtf8(text.substr(0, length)) == std::string_view::npos;
  return valid && text.size() >= length ? length : 0;
}

// Of a whole UTF-8 character.
uint32_t CodePoint(std::string_view character) {
  if (character.size() == 1) {
    return static_cast<unsigned char>(character.front());
  }
  uint32_t code = static_cast<unsigned char>(character.front()) & (0x7FU >> character.size());
  for (const char byte : character.substr(1)) {
    code = code << 6 | (static_cast<unsigned char>(byte) & 0x3FU);
  }
  return code;
}

bool IsControl(uint32_t code) {
  const bool turns_direction = code == 0x200E || code == 0x200F || (code >= 0x2066 && code <= 0x2069);
  const bool separates_or_turns = code >= 0x2028 && code <= 0x202E;
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || turns_direction || separates_or_turns;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = FrontCharacterBytes(text);
    const std::string_view character = text.substr(0, std::max(length, size_t{1}));
    const uint32_t code = length > 0 ? CodePoint(character) : static_cast<unsigned char>(text.front());
    if (length > 0 && !IsControl(code)) {
      shown += character;
    } else {
      shown += code < 0x100 && length < 2 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

std::string FormatTable(std::vector<std::vector<std::string>> rows, bool header) {
  for (auto& row : rows) {
    std::transform(row.begin(), row.end(), row.begin(), [](const std::string& cell) { return Printable(cell); });
  }
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
