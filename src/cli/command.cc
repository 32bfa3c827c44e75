#include "cli/command.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string_view>

#include "cli/version.h"

namespace kvant::cli {
namespace {

// Our own errors travel as Status; what throws here is the standard library under a full machine.
Status RunGuarded(const Work& work, Console& console) {
  try {
    return work(console);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "out of memory"};
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, error.what()};
  }
}

// A result that could not be written (a full disk, a closed pipe) is a failure, whatever the work said.
int WithOutputWritten(int exit_status) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) {
    return exit_status;
  }
  std::cerr << "kvant: cannot write standard output\n";
  return exit_status == kExitDone ? kExitFailed : exit_status;
}

}  // namespace

int ExitStatusOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return kExitDone;
    case StatusCode::kInvalidArgument:
    case StatusCode::kPrecisionUnsupported: return kExitUsage;
    default: return kExitFailed;
  }
}

std::string EnvironmentTwin(const std::string& names) {
  const size_t start = names.find("--");
  std::string twin = names.substr(start + 2, names.find(',', start) - start - 2);
  std::transform(twin.begin(), twin.end(), twin.begin(),
                 [](unsigned char letter) { return letter == '-' ? '_' : static_cast<char>(std::toupper(letter)); });
  return "KVANT_" + twin;
}

CLI::Option* AddSwitch(CLI::App& command, const std::string& names, bool& value, const std::string& help) {
  return command.add_flag(names, value, help)->envname(EnvironmentTwin(names));
}

Program::Program() : app_("LLM inference from a mixed-precision KV cache", "kvant") {
  app_.require_subcommand(1);
  app_.set_version_flag(
      "--version", [] { return VersionText(); }, "Commit, ggml version and instruction sets");
  app_.footer(
      "Every flag has an environment twin: --link-gbps is KVANT_LINK_GBPS. A flag given wins.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

CLI::App* Program::AddCommand(const std::string& name, const std::string& description, Work work) {
  CLI::App* command = app_.add_subcommand(name, description);
  // Immediate: only then is the environment read for the chosen command alone.
  command->immediate_callback()->callback([this, work = std::move(work)] { chosen_ = work; });
  AddSwitch(*command, "--json", json_, "Print one JSON object on standard output, everything else on standard error");
  return command;
}

int Program::Run(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // The parser may have stopped before it came to --json.
    json_ = json_ || std::any_of(argv, argv + argc, [](std::string_view word) { return word == "--json"; });
    return WithOutputWritten(ReportParseError(error));
  }
  return WithOutputWritten(RunChosen());
}

int Program::ReportParseError(const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    app_.exit(error);  // --help and --version: prints on standard output
    return kExitDone;
  }
  const auto chosen = app_.get_subcommands();
  const std::string command = chosen.empty() ? "kvant" : "kvant " + chosen.front()->get_name();
  std::cerr << command << ": " << error.what() << "\nTry " << command << " --help.\n";
  Console(json_).PrintJson(ErrorJson({StatusCode::kInvalidArgument, error.what()}));
  return kExitUsage;
}

int Program::RunChosen() {
  Console console(json_);
  const Status status = RunGuarded(chosen_, console);
  if (!status.ok()) {
    console.PrintError(status);
  }
  return ExitStatusOf(status);
}

}  // namespace kvant::cli
