#pragma once

#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvant/base/status.h"

namespace kvant::cli {

/// JSON whose fields stay in the order they were written in.
using Json = nlohmann::ordered_json;

/// {"error": {"code", "message"}}: what --json prints instead of a result.
Json ErrorJson(const Status& status);

/// Standard output and standard error of one command.
///
/// With --json standard output gets exactly one JSON object, the result or the error. Without it, standard output gets
/// the text a command was asked for. Tables, notes and progress go to standard error, so a pipe stays clean.
///
/// Threads  any number for ShowProgress and ClearProgress; everything else is for one
class Console {
 public:
  explicit Console(bool json);

  bool json() const { return json_; }

  /// The command's result on standard output, at once; nothing with --json.
  void PrintText(std::string_view text);
  /// The command's result as JSON, with "warnings", the lines of PrintWarning; nothing without --json.
  void PrintJson(Json result);
  /// A line on standard error.
  void PrintNote(std::string_view line);
  /// "kvant: warning: " and the text, made Printable, on standard error.
  void PrintWarning(std::string_view text);
  /// "kvant: " and the message, made Printable, on standard error; as JSON on standard output, unless a result was
  /// printed there that says more.
  void PrintError(const Status& status);

  /// Redraw the progress line: a bar, then `detail`. Only where standard error is a terminal.
  void ShowProgress(std::string_view stage, uint64_t done, uint64_t total, std::string_view detail);
  void ClearProgress();

 private:
  bool json_;
  bool terminal_;
  std::mutex mutex_;
  bool progress_shown_ = false;
  bool result_printed_ = false;
  Json warnings_ = Json::array();
};

}  // namespace kvant::cli
