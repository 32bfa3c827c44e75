#include "kvant/eval/candidate.h"

#include <gtest/gtest.h>

namespace kvant::eval {
namespace {

TEST(Candidate, TheShortestWordComesBack) {
  for (const char* word :
       {"fp16", "int4,eq=off", "pairs:2", "kitty:12.5%", "kitty:25%,v=4,rec=midrise", "keys:kitty:10%",
        "reselect:pnmix:3/1@50%,rule=k", "keys:reselect:pairs:2", "keys:pnmix:3/1@50%,one=means"}) {
    const Result<Candidate> candidate = ParseCandidate(word);
    ASSERT_TRUE(candidate.ok()) << candidate.status().message();
    EXPECT_EQ(CandidateWord(*candidate), word);
  }
}

TEST(Candidate, KittyIsFourAndTwoBitsByMagnitude) {
  const Candidate kitty = ParseCandidate("kitty:12.5%").value();
  EXPECT_EQ(kitty.keys, KeysOf::kPageChannels);
  EXPECT_FALSE(kitty.exact_values);
  EXPECT_EQ(kitty.precision.pairs->two_widths, (codec::PairPrecision::TwoWidths{4, 2, 12.5}));
  EXPECT_EQ(kitty.precision.pairs->score, codec::PairScore::kMagnitude);
  EXPECT_EQ(kitty.precision.pairs->value_bits, 2U);
  EXPECT_EQ(kitty.precision.pairs->key_rule, codec::PairRule::kMinMax);
}

TEST(Candidate, WhatHasNoMeaningIsRefusedByName) {
  for (const char* word : {"kitty:", "kitty:x%", "kitty:12.5%,rule=qk", "keys:int4", "keys:fp16", "reselect:int8",
                           "keys:spectrum:b=0.3", "keys:keys:pairs:2", "reselect:kitty:12.5%",
                           "keys:pairs:2.0,map=model", "kitty:12.5%,map=model", "reselect:pairs:2,map=model"}) {
    const Result<Candidate> candidate = ParseCandidate(word);
    ASSERT_FALSE(candidate.ok()) << word;
    EXPECT_NE(candidate.status().message().find(word), std::string::npos) << candidate.status().message();
  }
}

TEST(Candidate, NoCacheTakesAReference) {
  for (const char* word : {"kitty:12.5%", "reselect:pairs:2", "keys:pairs:2"}) {
    const Result<codec::Precision> precision = codec::ParsePrecision(word);
    ASSERT_FALSE(precision.ok()) << word;
    EXPECT_EQ(precision.status().code(), StatusCode::kPrecisionUnsupported);
    EXPECT_NE(precision.status().message().find("a reference that eval scores"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvant::eval
