#include "cli/generate_flags.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvant::cli {
namespace {

Result<KvPlan> Plan(bool disaggregated, const std::string& kv, const std::string& wire, double link_gbps = 0) {
  GenerateFlags flags;
  flags.disaggregated = disaggregated;
  flags.kv = kv;
  flags.wire = wire;
  flags.link_gbps = link_gbps;
  return PlanKv(flags);
}

TEST(PlanKv, LocallyTheCacheIsInt8UnlessToldOtherwise) {
  EXPECT_EQ(codec::PrecisionWord(Plan(false, "", "")->kv), "int8");
  EXPECT_EQ(codec::PrecisionWord(Plan(false, "int4,sinks=0", "")->kv), "int4,sinks=0");
  EXPECT_FALSE(Plan(false, "", "")->wire.has_value());
}

TEST(PlanKv, LocallyNothingIsSent) {
  EXPECT_EQ(Plan(false, "", "int8").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Plan(false, "", "", 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Plan(false, "as-received", "").status().code(), StatusCode::kInvalidArgument);
}

TEST(PlanKv, DisaggregatedTheCacheIsWhatArrives) {
  for (const char* kv : {"", "as-received", "int4", "int4,sinks=4"}) {
    const Result<KvPlan> plan = Plan(true, kv, "int4");
    ASSERT_TRUE(plan.ok()) << kv << ": " << plan.status().message();
    EXPECT_EQ(plan->kv, *plan->wire);
    EXPECT_EQ(codec::PrecisionWord(plan->kv), "int4");
  }
  EXPECT_EQ(codec::PrecisionWord(*Plan(true, "", "")->wire), "int8");
}

TEST(PlanKv, AWorkerGetsWhatIsSent) {
  GenerateFlags flags;
  flags.decode_worker = "127.0.0.1:7333";
  flags.link_gbps = 1;
  EXPECT_EQ(codec::PrecisionWord(*PlanKv(flags)->wire), "int8");
  flags.disaggregated = true;
  EXPECT_EQ(PlanKv(flags).status().message(), "--disaggregated and --decode-worker: give one of them");
}

TEST(PlanKv, WhatWouldEncodeTwiceIsRefusedWithBothWords) {
  const Status refused = Plan(true, "int4", "int8").status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("--kv int4"), std::string::npos);
  EXPECT_NE(refused.message().find("--wire int8"), std::string::npos);
  EXPECT_EQ(Plan(true, "int8,sinks=0", "int8").status().code(), StatusCode::kInvalidArgument);
}

TEST(PlanKv, AnUnknownWordNamesTheFlag) {
  const Status unknown = Plan(true, "", "int9").status();
  EXPECT_EQ(unknown.code(), StatusCode::kPrecisionUnsupported);
  EXPECT_EQ(unknown.message().rfind("--wire: ", 0), 0U) << unknown.message();
}

class ReadPromptTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::path(testing::TempDir()) / ("kvant_prompt_" + std::to_string(getpid()))).string();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<std::string> FromFile(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    GenerateFlags flags;
    flags.file = path_;
    return ReadPrompt(flags);
  }
  static Result<std::string> FromText(const std::string& text) {
    GenerateFlags flags;
    flags.prompt = text;
    return ReadPrompt(flags);
  }

  std::string path_;
};

TEST_F(ReadPromptTest, IsTakenByteByByte) {
  EXPECT_EQ(*FromText(" hé "), " hé ");
  const std::string content("line\r\n\0end\n", 11);
  EXPECT_EQ(*FromFile(content), content);
}

TEST_F(ReadPromptTest, OneOfTwoSourcesExactly) {
  EXPECT_EQ(ReadPrompt({}).status().code(), StatusCode::kInvalidArgument);
  GenerateFlags both;
  both.prompt = "text";
  both.file = "file";
  EXPECT_EQ(ReadPrompt(both).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ReadPromptTest, EmptyOrInvalidTextIsRefused) {
  EXPECT_EQ(FromText("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FromFile("").status().code(), StatusCode::kInvalidArgument);
  const Status invalid = FromText("ab\xC3(").status();
  EXPECT_EQ(invalid.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(invalid.message().find("byte 2"), std::string::npos) << invalid.message();
}

TEST_F(ReadPromptTest, AFileThatIsNotThereOrTooLargeIsRefused) {
  GenerateFlags flags;
  flags.file = path_ + ".missing";
  EXPECT_EQ(ReadPrompt(flags).status().code(), StatusCode::kNotFound);
  flags.file = testing::TempDir();
  EXPECT_EQ(ReadPrompt(flags).status().code(), StatusCode::kIoError);
  EXPECT_EQ(FromFile(std::string(kMaxTextFileBytes + 1, 'x')).status().code(), StatusCode::kCapacityExceeded);
}

}  // namespace
}  // namespace kvant::cli
