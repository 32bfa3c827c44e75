#include "cli/option.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

namespace kvant::cli {
namespace {

TEST(EnvironmentTwin, IsTheFirstLongName) {
  EXPECT_EQ(EnvironmentTwin("--link-gbps"), "KVANT_LINK_GBPS");
  EXPECT_EQ(EnvironmentTwin("-n,--max-tokens"), "KVANT_MAX_TOKENS");
  EXPECT_EQ(EnvironmentTwin("--kv,--cache"), "KVANT_KV");
}

// What the parser says to `words`; empty where it takes them. Words are given last first.
std::string ErrorOf(CLI::App& app, std::vector<std::string> words) {
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(AddOption, WholeNumbersAreDecimal) {
  CLI::App app;
  uint32_t count = 0;
  int32_t place = 0;
  std::vector<uint32_t> several;
  AddOption(app, "--count", count, "");
  AddOption(app, "--place", place, "");
  AddOption(app, "--several", several, "")->delimiter(',');
  EXPECT_EQ(ErrorOf(app, {"--several=010,0,08", "--place=-010", "--count=0010"}), "");
  EXPECT_EQ(count, 10U);
  EXPECT_EQ(place, -10);
  EXPECT_EQ(several, (std::vector<uint32_t>{10, 0, 8}));
  for (const char* word : {"0x10", "1e3", "three", " 5", "+5", "-3", "-", "5 "}) {
    EXPECT_EQ(ErrorOf(app, {std::string("--count=") + word}),
              "--count: " + std::string(word) + " is not a whole number from 0");
  }
  EXPECT_NE(ErrorOf(app, {"--count=4294967296"}), "");
}

TEST(AddOption, AnEmptyValueIsRefusedWhateverTheType) {
  CLI::App app;
  std::string word;
  double rate = 0;
  int count = 0;
  AddOption(app, "--word", word, "");
  AddOption(app, "--rate", rate, "");
  AddOption(app, "--count", count, "");
  for (const std::string name : {"--word", "--rate", "--count"}) {
    EXPECT_EQ(ErrorOf(app, {"", name}), name + ": the value is empty");
  }
}

TEST(InRange, NamesBothEnds) {
  CLI::App app;
  int count = 0;
  double rate = 0;
  AddOption(app, "--count", count, "")->check(InRange(1, 8));
  AddOption(app, "--rate", rate, "")->check(InRange(0.5, 2.0));
  EXPECT_EQ(ErrorOf(app, {"--rate=0.5", "--count=8"}), "");
  EXPECT_EQ(ErrorOf(app, {"--count=0"}), "--count: 0 is not from 1 to 8");
  EXPECT_EQ(ErrorOf(app, {"--rate=2.01"}), "--rate: 2.01 is not from 0.5 to 2");
  EXPECT_EQ(ErrorOf(app, {"--rate=nan"}), "--rate: nan is not from 0.5 to 2");
}

class LetFlagWinTest : public testing::Test {
 protected:
  LetFlagWinTest() { LetFlagWin(AddOption(app_, "-p,--pear", pear_, ""), AddOption(app_, "-f,--fig", fig_, "")); }
  ~LetFlagWinTest() override {
    unsetenv("KVANT_PEAR");
    unsetenv("KVANT_FIG");
  }

  CLI::App app_;
  std::optional<std::string> pear_;
  std::optional<std::string> fig_;
};

TEST_F(LetFlagWinTest, OverTheTwinOfTheOther) {
  setenv("KVANT_FIG", "env", 1);
  EXPECT_EQ(ErrorOf(app_, {"flag", "-p"}), "");
  EXPECT_EQ(pear_, "flag");
  EXPECT_FALSE(fig_.has_value());
}

TEST_F(LetFlagWinTest, EqualSourcesAreBothSeen) {
  setenv("KVANT_FIG", "env", 1);
  setenv("KVANT_PEAR", "env", 1);
  EXPECT_EQ(ErrorOf(app_, {}), "");
  EXPECT_TRUE(pear_.has_value() && fig_.has_value());
}

TEST_F(LetFlagWinTest, AFlagGivenTwiceIsRefused) {
  EXPECT_EQ(ErrorOf(app_, {"-pone", "-ptwo"}), "--pear: is given twice");
}

}  // namespace
}  // namespace kvant::cli
