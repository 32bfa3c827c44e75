#include "kvant/wire/messages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace kvant::wire {
namespace {

Hello SomeHello() {
  Hello hello;
  hello.model = {0x11, 0x22, {30, 3, 64}, RopeLayout::kHalves, 1e6F, 0x33};
  hello.precision = codec::ParsePrecision("int4,sinks=7,residual=32").value();
  hello.num_prompt_tokens = 900;
  hello.num_context_tokens = 1000;
  return hello;
}

Result<FrameView> Open(const Result<Buffer>& frame) { return OpenFrame(frame->bytes()); }

Status DecodedStatus(const Hello& hello) {
  const auto frame = EncodeHello(5, hello);
  return DecodeHello(Open(frame).value()).status();
}

TEST(MessagesTest, HelloComesBack) {
  for (const char* word :
       {"fp16", "int8", "int4", "int8,eq=off,sinks=0", "int4,eq=off,residual=inf", "int8,sinks=128"}) {
    Hello hello = SomeHello();
    hello.precision = codec::ParsePrecision(word).value();
    const auto frame = EncodeHello(5, hello);
    const auto decoded = DecodeHello(Open(frame).value());
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(*decoded, hello) << word;
  }
}

TEST(MessagesTest, HelloFieldsBeyondTheirLimitsAreNamed) {
  struct Case {
    std::function<void(Hello&)> change;
    StatusCode code;
    std::string named;
  };
  const StatusCode invalid = StatusCode::kInvalidArgument;
  const Case cases[] = {
      {[](Hello& h) { h.model.shape.num_layers = 0; }, invalid, "num_layers"},
      {[](Hello& h) { h.model.shape.num_layers = UINT32_MAX; }, invalid, "num_layers"},
      {[](Hello& h) { h.model.shape.num_kv_heads = kMaxKvHeads + 1; }, invalid, "num_kv_heads"},
      {[](Hello& h) { h.model.shape.head_dim = 0; }, StatusCode::kModelUnsupported, "head dimension 0"},
      {[](Hello& h) { h.model.shape.head_dim = 66; }, StatusCode::kModelUnsupported, "head dimension 66"},
      {[](Hello& h) { h.model.rope_layout = RopeLayout{3}; }, invalid, "rope_layout"},
      {[](Hello& h) { h.model.rope_base = std::nanf(""); }, invalid, "rope_base"},
      {[](Hello& h) { h.model.rope_base = -std::numeric_limits<float>::infinity(); }, invalid, "rope_base"},
      {[](Hello& h) { h.num_prompt_tokens = 0; }, invalid, "num_prompt_tokens"},
      {[](Hello& h) { h.num_prompt_tokens = kMaxTokens + 1; }, invalid, "num_prompt_tokens"},
      {[](Hello& h) { h.num_context_tokens = 899; }, invalid, "num_context_tokens"},
      {[](Hello& h) { h.precision.codec = codec::TokenCodec{8}; }, StatusCode::kPrecisionUnsupported, "codec 8"},
      {[](Hello& h) { h.precision.codec = codec::TokenCodec::kInt4; }, invalid, "int4"},
      {[](Hello& h) { h.precision.equalize = false; }, invalid, "int4"},
      {[](Hello& h) { h.precision.num_sinks = 129; }, invalid, "sinks"},
      {[](Hello& h) { h.precision.residual = 0; }, invalid, "residual"},
      {[](Hello& h) { h.precision.residual = 129; }, invalid, "residual"},
      {[](Hello& h) {
         h.precision = {codec::TokenCodec::kFp16, false, 4, 128};
       },
       invalid, "fp16"},
  };
  for (const Case& c : cases) {
    Hello hello = SomeHello();
    c.change(hello);
    const Status status = DecodedStatus(hello);
    EXPECT_EQ(status.code(), c.code) << status.message();
    EXPECT_NE(status.message().find(c.named), std::string::npos) << status.message();
  }
}

TEST(MessagesTest, AnotherProtocolNumberIsForTheReceiverToJudge) {
  Hello hello = SomeHello();
  hello.protocol = 2;
  EXPECT_TRUE(DecodedStatus(hello).ok());
}

TEST(MessagesTest, VerdictsComeBack) {
  for (const Verdict& verdict : {Verdict{}, Verdict{StatusCode::kMismatch, "num_layers: sender 1, receiver 2"}}) {
    const auto frame = EncodeHelloReply(5, verdict);
    EXPECT_EQ(DecodeHelloReply(Open(frame).value()).value(), verdict);
  }
  const Verdict error{StatusCode::kTimeout, "no layer for 5 s"};
  const auto frame = EncodeError(5, error);
  EXPECT_EQ(DecodeError(Open(frame).value()).value(), error);
}

TEST(MessagesTest, TextIsCutAndMadePrintable) {
  const auto frame = EncodeError(5, {StatusCode::kIoError, "caf\xC3\xA9\n\x1B[31m" + std::string(5000, 'x')});
  const Verdict verdict = DecodeError(Open(frame).value()).value();
  EXPECT_EQ(verdict.text.substr(0, 11), "caf????[31m");
  EXPECT_EQ(verdict.text.size(), kMaxTextBytes);
}

TEST(MessagesTest, AnErrorIsNeverOkAndAnAcceptanceHasNoText) {
  const auto no_error = EncodeError(5, {StatusCode::kOk, ""});
  EXPECT_EQ(DecodeError(Open(no_error).value()).status().code(), StatusCode::kInvalidArgument);
  const auto unknown = EncodeError(5, {StatusCode{17}, ""});
  EXPECT_EQ(DecodeError(Open(unknown).value()).status().code(), StatusCode::kInvalidArgument);
  const auto chatty = EncodeHelloReply(5, {StatusCode::kOk, "fine"});
  EXPECT_EQ(DecodeHelloReply(Open(chatty).value()).status().code(), StatusCode::kInvalidArgument);
}

TEST(MessagesTest, FinishComesBack) {
  const Finish finish{{0, 5, INT32_MAX}, 17, 3, {UINT64_MAX, 1}};
  const auto frame = EncodeFinish(5, finish);
  EXPECT_EQ(DecodeFinish(Open(frame).value()).value(), finish);
}

TEST(MessagesTest, FinishRefusesWhatIsNoPrompt) {
  const std::pair<Finish, const char*> cases[] = {
      {Finish{{}, 17, 0, {}}, "prompt tokens 0"},
      {Finish{{1, -1}, 17, 2, {}}, "negative token"},
      {Finish{{1}, -1, 1, {}}, "negative token"},
      {Finish{{1}, 2, kMaxTokens + 1, {}}, "first_position"},
  };
  for (const auto& [finish, named] : cases) {
    const auto frame = EncodeFinish(5, finish);
    const Status status = DecodeFinish(Open(frame).value()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
  }
}

TEST(MessagesTest, DoneComesBack) {
  const Done done{uint64_t{1} << 40, 30};
  const auto frame = EncodeDone(5, done);
  EXPECT_EQ(DecodeDone(Open(frame).value()).value(), done);
}

TEST(MessagesTest, APayloadOfAnotherSizeIsRefused) {
  const auto cancel = EncodeCancel(5);
  const FrameView empty = Open(cancel).value();
  EXPECT_TRUE(CheckCancel(empty).ok());
  EXPECT_EQ(DecodeHello(empty).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(DecodeHelloReply(empty).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(DecodeFinish(empty).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(DecodeDone(empty).status().code(), StatusCode::kOutOfRange);
  const auto done = EncodeDone(5, {});
  EXPECT_EQ(CheckCancel(Open(done).value()).code(), StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace kvant::wire
