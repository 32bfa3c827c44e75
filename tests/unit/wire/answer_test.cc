#include "kvant/wire/answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace kvant::wire {
namespace {

Result<FrameView> Open(const Result<Buffer>& frame) { return OpenFrame(frame->bytes()); }

AnswerRequest SomeRequest() {
  return {kAnswerVersion, 128, true, 0.5F, -1, 0.9F, 0.1F, 1.1F, -1, 42, "root ::= \"a\""};
}

TEST(AnswerTest, MessagesComeBack) {
  const AnswerRequest request = SomeRequest();
  const auto request_frame = EncodeAnswerRequest(9, request);
  EXPECT_EQ(DecodeAnswerRequest(Open(request_frame).value()).value(), request);
  const AnswerText text{77, 3, "π ≈ 3"};
  const auto text_frame = EncodeAnswerText(9, text);
  EXPECT_EQ(DecodeAnswerText(Open(text_frame).value()).value(), text);
  const AnswerEnd end{1, 128, 1'000'000, 1, 2, 3, 4.5, 5.5, {1, 2, 3, 4}, 10, 4};
  const auto end_frame = EncodeAnswerEnd(9, end);
  EXPECT_EQ(DecodeAnswerEnd(Open(end_frame).value()).value(), end);
}

TEST(AnswerTest, RequestFieldsBeyondTheirLimitsAreNamed) {
  struct Case {
    std::function<void(AnswerRequest&)> change;
    StatusCode code;
    std::string named;
  };
  const StatusCode invalid = StatusCode::kInvalidArgument;
  const Case cases[] = {
      {[](AnswerRequest& r) { r.version = 2; }, StatusCode::kVersionUnsupported, "answer version 2"},
      {[](AnswerRequest& r) { r.max_tokens = 0; }, invalid, "max_tokens 0"},
      {[](AnswerRequest& r) { r.max_tokens = kMaxTokens + 1; }, invalid, "max_tokens"},
      {[](AnswerRequest& r) { r.temperature = std::nanf(""); }, invalid, "temperature"},
      {[](AnswerRequest& r) { r.top_p = -0.1F; }, invalid, "top_p"},
      {[](AnswerRequest& r) { r.min_p = std::numeric_limits<float>::infinity(); }, invalid, "min_p"},
      {[](AnswerRequest& r) { r.repeat_penalty = -1; }, invalid, "repeat_penalty"},
      {[](AnswerRequest& r) { r.grammar.assign(kMaxGrammarBytes + 1, ' '); }, invalid, "grammar bytes"},
  };
  for (const Case& c : cases) {
    AnswerRequest request = SomeRequest();
    c.change(request);
    const auto frame = EncodeAnswerRequest(9, request);
    const Status status = DecodeAnswerRequest(Open(frame).value()).status();
    EXPECT_EQ(status.code(), c.code) << c.named;
    EXPECT_NE(status.message().find(c.named), std::string::npos) << status.message();
  }
}

TEST(AnswerTest, TextIsWholeCharacters) {
  const char* good[] = {"a",
                        "\xC2\x80",
                        "\xDF\xBF",
                        "\xE0\xA0\x80",
                        "\xED\x9F\xBF",
                        "\xEF\xBF\xBF",
                        "\xF0\x90\x80\x80",
                        "\xF4\x8F\xBF\xBF"};
  const char* bad[] = {"\x80",
                       "\xC0\x80",
                       "\xC1\xBF",
                       "\xC2",
                       "\xC2\x41",
                       "\xE0\x9F\xBF",
                       "\xED\xA0\x80",
                       "\xE1\x80",
                       "\xF0\x8F\xBF\xBF",
                       "\xF4\x90\x80\x80",
                       "\xF5\x80\x80\x80",
                       "\xFF",
                       "a\xF0\x90\x80"};
  for (const char* text : good) {
    const auto frame = EncodeAnswerText(9, {0, 1, text});
    EXPECT_TRUE(DecodeAnswerText(Open(frame).value()).ok()) << text;
  }
  for (const char* text : bad) {
    const auto frame = EncodeAnswerText(9, {0, 1, text});
    EXPECT_EQ(DecodeAnswerText(Open(frame).value()).status().code(), StatusCode::kInvalidArgument) << text;
  }
  for (const size_t size : {size_t{0}, size_t{kMaxAnswerTextBytes} + 1}) {
    const auto frame = EncodeAnswerText(9, {0, 1, std::string(size, 'a')});
    EXPECT_EQ(DecodeAnswerText(Open(frame).value()).status().code(), StatusCode::kInvalidArgument) << size;
  }
}

TEST(AnswerTest, EndFieldsBeyondTheirLimitsAreNamed) {
  const std::pair<std::function<void(AnswerEnd&)>, std::string> cases[] = {
      {[](AnswerEnd& e) { e.reason = 2; }, "reason 2"},
      {[](AnswerEnd& e) { e.tokens = kMaxTokens + 1; }, "tokens"},
      {[](AnswerEnd& e) { e.payload_bits = std::nan(""); }, "payload bits"},
      {[](AnswerEnd& e) { e.effective_bits = -1; }, "effective bits"},
      {[](AnswerEnd& e) { e.tier_tokens[3] = std::numeric_limits<double>::infinity(); }, "tier tokens"},
      {[](AnswerEnd& e) { e.received_encoded = UINT32_MAX; }, "received encoded"},
      {[](AnswerEnd& e) { e.received_exact = UINT32_MAX; }, "received exact"}};
  for (const auto& [change, named] : cases) {
    AnswerEnd end;
    change(end);
    const auto frame = EncodeAnswerEnd(9, end);
    const Status status = DecodeAnswerEnd(Open(frame).value()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace kvant::wire
