#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "cli/console.h"
#include "cli/option.h"
#include "kvant/base/status.h"

namespace kvant::cli {

/// What a sub-command does once its flags are read. Its error becomes the message and the exit status (ExitStatusOf).
using Work = std::function<Status(Console& console)>;

/// Exit statuses of every command.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

/// kInvalidArgument and kPrecisionUnsupported are the user's words: usage. Everything else failed.
int ExitStatusOf(const Status& status);

/// Where commands register themselves.
class Program {
 public:
  Program();

  /// A sub-command with --help and --json; add its options to what is returned. `work` runs after parsing, so the
  /// variables that options are bound to must live in it (a shared_ptr in its capture).
  CLI::App* AddCommand(const std::string& name, const std::string& description, Work work);

  /// Parse, run the command that was chosen, report its error. Returns the exit status.
  int Run(int argc, char** argv);

 private:
  int ReportParseError(const CLI::ParseError& error);
  /// The command that was chosen, or the one of its sub-commands.
  const CLI::App& Chosen() const;
  int RunChosen();

  CLI::App app_;
  bool json_ = false;
  Work chosen_;
};

void AddBenchCommand(Program& program);
void AddCalibrateCommand(Program& program);
void AddDecodeWorkerCommand(Program& program);
void AddEvalCommand(Program& program);
void AddGenerateCommand(Program& program);
void AddInspectCommand(Program& program);
void AddModelsCommand(Program& program);

}  // namespace kvant::cli
