#include "cli/command.h"

#include <fmt/core.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
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

std::string NamesOf(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// "kvant bench decode".
std::string PathOf(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : PathOf(*parent) + " " + app.get_name();
}

// Of a missing sub-command the parser says no more than that.
std::string MessageOf(const CLI::ParseError& error, const CLI::App& app) {
  if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr || NamesOf(app).empty()) {
    return error.what();
  }
  const std::vector<std::string> words = app.remaining();
  return fmt::format("{}; known are {}", words.empty() ? "no command is given" : "unknown command " + words.front(),
                     NamesOf(app));
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
  const CLI::App& app = Chosen();
  Console console(json_);
  console.PrintError({StatusCode::kInvalidArgument, MessageOf(error, app)});
  console.PrintNote(fmt::format("Try {} --help.", PathOf(app)));
  return kExitUsage;
}

const CLI::App& Program::Chosen() const {
  const CLI::App* app = &app_;
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
  }
  return *app;
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
