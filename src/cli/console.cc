#include "cli/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/format.h"

namespace kvant::cli {
namespace {

constexpr uint64_t kBarCells = 28;
constexpr const char* kEraseLine = "\r\x1b[2K";

std::string Bar(uint64_t done, uint64_t total) {
  const uint64_t filled = total == 0 ? 0 : std::min(done, total) * kBarCells / total;
  std::string bar;
  for (uint64_t cell = 0; cell < kBarCells; ++cell) {
    bar += cell < filled ? "█" : "░";
  }
  return bar;
}

// Text from a model or a file may hold broken UTF-8, which JSON cannot: it is replaced by U+FFFD. Of the control
// characters nlohmann leaves DEL and U+0080 to U+009F as they are, which a terminal would obey.
std::string Dump(const Json& value) {
  const std::string dumped = value.dump(2, ' ', false, Json::error_handler_t::replace);
  std::string text;
  for (size_t i = 0; i < dumped.size(); ++i) {
    const auto byte = static_cast<unsigned char>(dumped[i]);
    const auto next = static_cast<unsigned char>(i + 1 < dumped.size() ? dumped[i + 1] : 0);
    if (byte == 0x7F) {
      text += "\\u007f";
    } else if (byte == 0xC2 && next < 0xA0) {
      text += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      text += dumped[i];
    }
  }
  return text;
}

}  // namespace

Json ErrorJson(const Status& status) {
  return {{"error", {{"code", StatusCodeName(status.code())}, {"message", status.message()}}}};
}

Console::Console(bool json) : json_(json), terminal_(isatty(STDERR_FILENO) == 1) {}

void Console::PrintText(std::string_view text) {
  if (!json_) {
    fmt::print(stdout, "{}", text);
    std::fflush(stdout);
  }
}

void Console::PrintJson(Json result) {
  if (json_) {
    result["warnings"] = warnings_;
    fmt::print(stdout, "{}\n", Dump(result));
    std::fflush(stdout);
    result_printed_ = true;
  }
}

void Console::PrintNote(std::string_view line) {
  ClearProgress();
  fmt::print(stderr, "{}\n", line);
}

void Console::PrintWarning(std::string_view text) {
  PrintNote(fmt::format("kvant: warning: {}", Printable(text)));
  warnings_.emplace_back(text);
}

void Console::PrintError(const Status& status) {
  PrintNote(fmt::format("kvant: {}", Printable(status.message())));
  if (!result_printed_) {
    PrintJson(ErrorJson(status));
  }
}

void Console::ShowProgress(std::string_view stage, uint64_t done, uint64_t total, std::string_view detail) {
  if (terminal_) {
    const std::lock_guard lock(mutex_);
    fmt::print(stderr, "{}{:<9} {} {}", kEraseLine, stage, Bar(done, total), detail);
    std::fflush(stderr);
    progress_shown_ = true;
  }
}

void Console::ClearProgress() {
  const std::lock_guard lock(mutex_);
  if (progress_shown_) {
    fmt::print(stderr, "{}", kEraseLine);
    progress_shown_ = false;
  }
}

}  // namespace kvant::cli
