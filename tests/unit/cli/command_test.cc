#include "cli/command.h"

#include <gtest/gtest.h>

namespace kvant::cli {
namespace {

TEST(ExitStatus, UsageIsWhatTheUserSaidFailureEverythingElse) {
  EXPECT_EQ(ExitStatusOf(OkStatus()), 0);
  EXPECT_EQ(ExitStatusOf({StatusCode::kInvalidArgument, "x"}), 2);
  EXPECT_EQ(ExitStatusOf({StatusCode::kPrecisionUnsupported, "x"}), 2);
  EXPECT_EQ(ExitStatusOf({StatusCode::kNotFound, "x"}), 1);
  EXPECT_EQ(ExitStatusOf({StatusCode::kCapacityExceeded, "x"}), 1);
  EXPECT_EQ(ExitStatusOf({StatusCode::kInternal, "x"}), 1);
}

int RunProgram(Program& program, std::vector<std::string> words) {
  words.insert(words.begin(), "kvant");
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  return program.Run(static_cast<int>(argv.size()), argv.data());
}

TEST(Program, RunsTheChosenCommandWithItsFlags) {
  Program program;
  int value = 0;
  bool json = false;
  int other_runs = 0;
  AddOption(*program.AddCommand("first", "",
                                [&](Console& console) {
                                  json = console.json();
                                  return value == 7 ? OkStatus() : Status(StatusCode::kInternal, "not seven");
                                }),
            "--value", value, "");
  program.AddCommand("second", "", [&](Console&) { return ++other_runs, OkStatus(); });
  EXPECT_EQ(RunProgram(program, {"first", "--value", "7", "--json"}), 0);
  EXPECT_TRUE(json);
  EXPECT_EQ(other_runs, 0);
}

TEST(Program, AnErrorOrAnExceptionOfACommandIsItsExitStatus) {
  const auto status_of = [](Work work) {
    Program program;
    program.AddCommand("work", "", std::move(work));
    testing::internal::CaptureStderr();
    const int status = RunProgram(program, {"work"});
    return std::pair(status, testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(status_of([](Console&) { return Status(StatusCode::kInvalidArgument, "bad flag"); }),
            std::pair(2, std::string("kvant: bad flag\n")));
  EXPECT_EQ(status_of([](Console&) -> Status { throw std::bad_alloc(); }),
            std::pair(1, std::string("kvant: out of memory\n")));
}

TEST(Program, WhatIsNoCommandOrFlagIsUsage) {
  Program program;
  program.AddCommand("work", "", [](Console&) { return OkStatus(); });
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunProgram(program, {"play\x1b"}), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "kvant: unknown command play\\x1b; known are work\nTry kvant --help.\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunProgram(program, {}), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "kvant: no command is given; known are work\nTry kvant --help.\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunProgram(program, {"work", "--hard"}), 2);
  const std::string message = testing::internal::GetCapturedStderr();
  EXPECT_EQ(message.rfind("kvant: ", 0), 0U) << message;
  EXPECT_NE(message.find("--hard"), std::string::npos);
  EXPECT_NE(message.find("\nTry kvant work --help.\n"), std::string::npos) << message;
}

}  // namespace
}  // namespace kvant::cli
