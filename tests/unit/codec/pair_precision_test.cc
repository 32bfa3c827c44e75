#include "kvant/codec/pair_precision.h"

#include <gtest/gtest.h>

namespace kvant::codec {
namespace {

PairPrecision Parsed(const char* word) {
  const Result<PairPrecision> parsed = ParsePairPrecision(word);
  EXPECT_TRUE(parsed.ok()) << word << ": " << parsed.status().message();
  return parsed.ok() ? *parsed : PairPrecision{};
}

TEST(PairPrecision, PnmixIsThePaper) {
  const PairPrecision precision = Parsed("pnmix:3/1@50%");
  EXPECT_EQ(precision.two_widths, (PairPrecision::TwoWidths{3, 1, 50}));
  EXPECT_EQ(precision.score, PairScore::kNormProduct);
  EXPECT_EQ(precision.FormatOf(128), (PairFormat{128, 128, 2, 128, PairRule::kMinMax, PairRule::kMinMax}));
  EXPECT_FALSE(precision.rotate_values);
  EXPECT_EQ(precision.num_sinks, 32U);
  EXPECT_EQ(precision.residual, 128U);
}

TEST(PairPrecision, PairsHaveTheDefaultsOfTheMeasurements) {
  const PairPrecision precision = Parsed("pairs:2.0");
  EXPECT_FALSE(precision.two_widths);
  EXPECT_EQ(precision.bits, 2.0);
  EXPECT_EQ(precision.FormatOf(64), (PairFormat{64, 128, 4, 64, PairRule::kMidRise, PairRule::kMinMax}));
  EXPECT_FALSE(precision.rotate_values);
  const PairPrecision small = Parsed("pairs:2.5,v=2");
  EXPECT_TRUE(small.rotate_values);
  EXPECT_EQ(small.value_rule, PairRule::kMidRise);
  EXPECT_EQ(Parsed("pairs:2,vrot=off,v=2").value_rule, PairRule::kMinMax);
  EXPECT_EQ(Parsed("pnmix:3/1@50%,vrot=on").value_rule, PairRule::kMidRise);
}

TEST(PairPrecision, TheShortestWordComesBack) {
  for (const char* word :
       {"pnmix:3/1@50%", "pnmix:4/1@35%", "pnmix:2/2@0%,v=4", "pnmix:3/1@12.5%,v=3,vg=32,g=64,rule=qrange",
        "pnmix:3/1@50%,rec=midrise,vrot=on,vrec=minmax", "pairs:2", "pairs:2.5,v=2", "pairs:2,v=2,vrot=off",
        "pairs:3,v=8,map=model,sinks=4,residual=64", "pairs:2,g=32", "pnmix:3/1@50%,rule=random", "pairs:2,rule=energy",
        "pnmix:3/1@50%,one=means,vrot=on", "pairs:2.5,one=ends"}) {
    EXPECT_EQ(PairPrecisionWord(Parsed(word)), word);
  }
  EXPECT_EQ(PairPrecisionWord(Parsed("pairs:2.0,v=4,rec=midrise")), "pairs:2");
}

TEST(PairPrecision, OtherWordsAreOfAnotherKind) {
  for (const char* word : {"fp16", "int8", "spectrum:b=0.5", "", "pn", "pairing:2"}) {
    EXPECT_FALSE(IsPairWord(word)) << word;
    EXPECT_EQ(ParsePairPrecision(word).status().code(), StatusCode::kPrecisionUnsupported) << word;
  }
  EXPECT_TRUE(IsPairWord("pnmix"));
  EXPECT_TRUE(IsPairWord("pairs:x"));
}

TEST(PairPrecision, FaultsAreNamed) {
  struct Case {
    const char* word;
    const char* fault;
  };
  for (const Case& c : {Case{"pnmix", "high/low"},
                        Case{"pnmix:", "high/low"},
                        Case{"pnmix:3@50%", "high/low"},
                        Case{"pnmix:3/1@50", "high/low"},
                        Case{"pnmix:5/1@50%", "1 to 4"},
                        Case{"pnmix:1/3@50%", "1 to 4"},
                        Case{"pnmix:3/0@50%", "1 to 4"},
                        Case{"pnmix:3/1@101%", "0 to 100"},
                        Case{"pnmix:3/1@x%", "0 to 100"},
                        Case{"pairs", "mean number"},
                        Case{"pairs:0.5", "1 to 4"},
                        Case{"pairs:9", "1 to 4"},
                        Case{"pairs:nan", "1 to 4"},
                        Case{"pairs:2,v=5", "2|3|4|8"},
                        Case{"pairs:2,vg=24", "16|32"},
                        Case{"pairs:2,g=100", "32|64|128"},
                        Case{"pairs:2,v=2,v=2", "twice"},
                        Case{"pairs:2,", "''"},
                        Case{"pairs:2,rule=qk", "error|energy"},
                        Case{"pnmix:3/1@50%,one=middle", "quarter|ends|means"},
                        Case{"pairs:2,color=red", "color"},
                        Case{"pnmix:3/1@50%,rule=best", "qk|k|energy"},
                        Case{"pnmix:3/1@50%,rec=x", "minmax|midrise"},
                        Case{"pairs:2,vrot=yes", "on|off"},
                        Case{"pairs:2,map=user", "prompt|model"},
                        Case{"pairs:2,sinks=129", "0 to 128"},
                        Case{"pairs:2,residual=0", "1 to 128"},
                        Case{"pairs:2,g=64,residual=65", "at most"},
                        Case{"pairs:2,eq=on", "'eq'"}}) {
    const Result<PairPrecision> parsed = ParsePairPrecision(c.word);
    ASSERT_FALSE(parsed.ok()) << c.word;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << c.word;
    EXPECT_NE(parsed.status().message().find(c.fault), std::string::npos) << parsed.status().message();
    EXPECT_NE(parsed.status().message().find(c.word), std::string::npos) << parsed.status().message();
  }
}

}  // namespace
}  // namespace kvant::codec
