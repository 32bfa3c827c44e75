#include "kvant/codec/precision.h"

#include <gtest/gtest.h>

namespace kvant::codec {
namespace {

struct WordCase {
  const char* word;
  Precision precision;
};

TEST(PrecisionTest, WordsMeanWhatTheContractSays) {
  constexpr uint32_t kEndless = Precision::kEndlessResidual;
  const WordCase cases[] = {
      {"fp16", {TokenCodec::kFp16, false, 0, kEndless}},
      {"int8", {TokenCodec::kInt8, true, 4, 128}},
      {"int4", {TokenCodec::kInt4Affine, true, 4, 128}},
      {"int8,eq=off", {TokenCodec::kInt8, false, 4, 128}},
      {"int4,eq=off", {TokenCodec::kInt4, false, 4, 128}},
      {"int4,eq=on", {TokenCodec::kInt4Affine, true, 4, 128}},
      {"int4,eq=off,sinks=0", {TokenCodec::kInt4, false, 0, 128}},
      {"int8,sinks=128,residual=1", {TokenCodec::kInt8, true, 128, 1}},
      {"int8,residual=inf,eq=off", {TokenCodec::kInt8, false, 4, kEndless}},
  };
  for (const WordCase& c : cases) {
    const Result<Precision> parsed = ParsePrecision(c.word);
    ASSERT_TRUE(parsed.ok()) << c.word << ": " << parsed.status().message();
    EXPECT_EQ(parsed.value(), c.precision) << c.word;
    const Result<Precision> again = ParsePrecision(PrecisionWord(parsed.value()));
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again.value(), c.precision) << PrecisionWord(parsed.value());
  }
}

TEST(PrecisionTest, TheShortestWordComesBack) {
  for (const char* word :
       {"fp16", "int8", "int4", "int8,eq=off", "int4,sinks=0", "int4,eq=off,sinks=7,residual=inf", "int8,residual=32",
        "spectrum:b=0.5", "spectrum:b=0.3,policy=balanced,importance=norm,scope=layer,decay=0.01,eq=off,sinks=0",
        "pdtrim:0.5", "pdtrim:0.5,first=0.3", "sws:0.25,importance=position", "sws:0.5,keep=prefix",
        "spectrum:b=0.1,policy=adaptive,residual=inf", "spectrum:b=0.3,decay=0.01,int4=pages,eq=off"}) {
    EXPECT_EQ(PrecisionWord(ParsePrecision(word).value()), word);
  }
  EXPECT_EQ(PrecisionWord(ParsePrecision("int4,eq=on,sinks=4,residual=128").value()), "int4");
  EXPECT_EQ(PrecisionWord(ParsePrecision("sws:0.5,keep=best").value()), "sws:0.5");
}

TEST(PrecisionTest, UnknownWordsAreNamedWithTheKnownOnes) {
  for (const char* word : {"", "int2", "INT8", "fp32", "int8 ", "spectral:b=0.5", ",int8"}) {
    const Result<Precision> parsed = ParsePrecision(word);
    ASSERT_FALSE(parsed.ok()) << word;
    EXPECT_EQ(parsed.status().code(), StatusCode::kPrecisionUnsupported) << word;
    EXPECT_NE(parsed.status().message().find("fp16, int8, int4"), std::string::npos);
  }
}

struct ErrorCase {
  const char* word;
  const char* fault;  ///< what the message must name
};

TEST(PrecisionTest, WrongOptionsAreNamed) {
  const ErrorCase cases[] = {
      {"fp16,eq=on", "eq=on"},
      {"fp16,sinks=4", "sinks=4"},
      {"int8,", "''"},
      {"int8,color=red", "color=red"},
      {"int8,eq", "'eq'"},
      {"int8,eq=maybe", "eq=maybe"},
      {"int8,eq=", "'eq='"},
      {"int8,eq=on,eq=off", "twice"},
      {"int8,sinks=4,sinks=4", "twice"},
      {"int8,sinks=129", "sinks=129"},
      {"int8,sinks=-1", "sinks=-1"},
      {"int8,sinks=4x", "sinks=4x"},
      {"int8,sinks=", "sinks="},
      {"int8,sinks=99999999999", "sinks=99999999999"},
      {"int8,residual=0", "residual=0"},
      {"int8,residual=129", "residual=129"},
      {"int8,residual=infinite", "residual=infinite"},
      {"int8, eq=on", " eq=on"},
      {"spectrum:b=", "'b'"},
      {"spectrum:0.5", "b=B"},
      {"spectrum:b=0.2", "0.25"},
      {"spectrum:b=1.1", "to 1"},
      {"spectrum:b=nan", "'b'"},
      {"spectrum:b=0.5,policy=best", "greedy|sink-protect"},
      {"spectrum:b=0.5,importance=luck", "attention|sampled"},
      {"spectrum:b=0.5,scope=token", "head|layer|model"},
      {"spectrum:b=0.5,decay=-1", "decay"},
      {"spectrum:b=0.5,policy=random,importance=norm", "not ranked"},
      {"spectrum:b=0.5,first=0.3", "first"},
      {"pdtrim:0.5,importance=norm", "importance"},
      {"pdtrim:0.5,first=2", "first"},
      {"sws:2", "to 1"},
      {"sws:0.5,policy=greedy", "policy"},
      {"sws:0.5,keep=last", "best|prefix"},
      {"sws:0.5,keep=prefix,importance=norm", "not ranked"},
      {"pdtrim:0.5,keep=prefix", "keep"},
      {"spectrum:b=0.5,keep=prefix", "keep"},
      {"spectrum:b=0.5,int4=page", "rows|pages"},
      {"progressive:b=0.5,int4=pages", "int4"},
      {"sws:0.5,int4=pages", "int4"},
      {"int4,int4=pages", "int4=pages"},
  };
  for (const ErrorCase& c : cases) {
    const Result<Precision> parsed = ParsePrecision(c.word);
    ASSERT_FALSE(parsed.ok()) << c.word;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << c.word;
    EXPECT_NE(parsed.status().message().find(c.fault), std::string::npos) << parsed.status().message();
    EXPECT_NE(parsed.status().message().find(c.word), std::string::npos) << parsed.status().message();
  }
}

}  // namespace
}  // namespace kvant::codec
