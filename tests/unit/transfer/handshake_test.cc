#include <gtest/gtest.h>

#include <functional>

#include "support/endpoint_pair.h"
#include "unit/transfer/rig.h"

namespace kvant::transfer {
namespace {

using test::Outcome;
using test::Rig;
using test::RunBoth;

struct Refusal {
  const char* name;
  std::function<void(Rig&)> change;
  StatusCode code;
  const char* text;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class HandshakeTest : public testing::TestWithParam<std::tuple<test::Carrier, Refusal>> {};

TEST_P(HandshakeTest, IsRefusedByNameAndNoKvMoves) {
  const auto& [carrier, refusal] = GetParam();
  Rig rig("int4", 200);
  refusal.change(rig);
  const test::EndpointPair pair = test::Connect(carrier);
  const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
  EXPECT_EQ(outcome.sender.code(), refusal.code);
  EXPECT_EQ(outcome.received.status().code(), refusal.code);
  EXPECT_NE(outcome.sender.message().find(refusal.text), std::string::npos) << outcome.sender.message();
  EXPECT_NE(outcome.received.status().message().find(refusal.text), std::string::npos);
  EXPECT_EQ(outcome.sender_report.sent.total(), wire::kHeaderBytes + wire::kHelloBytes);
  EXPECT_EQ(rig.receiver_account.in_use_bytes(), 0U);
  EXPECT_EQ(pair.first->WaitForRoom(1, transport::Deadline::min()).code(), StatusCode::kTransportClosed);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, HandshakeTest,
    testing::Combine(
        testing::ValuesIn(test::Carriers()),
        testing::Values(
            Refusal{"model", [](Rig& r) { r.receiver_options.model.model_fingerprint = 1; }, StatusCode::kMismatch,
                    "model_fingerprint: sender 0xa1, receiver 0x1"},
            Refusal{"tokenizer", [](Rig& r) { r.receiver_options.model.tokenizer_fingerprint = 1; },
                    StatusCode::kMismatch, "tokenizer_fingerprint: sender 0xb2, receiver 0x1"},
            Refusal{"layers", [](Rig& r) { r.receiver_options.model.shape.num_layers = 5; }, StatusCode::kMismatch,
                    "num_layers: sender 4, receiver 5"},
            Refusal{"kv_heads", [](Rig& r) { r.receiver_options.model.shape.num_kv_heads = 3; }, StatusCode::kMismatch,
                    "num_kv_heads: sender 2, receiver 3"},
            Refusal{"head_dim", [](Rig& r) { r.receiver_options.model.shape.head_dim = 80; }, StatusCode::kMismatch,
                    "head_dim: sender 40, receiver 80"},
            Refusal{"rope_layout", [](Rig& r) { r.receiver_options.model.rope_layout = wire::RopeLayout::kHalves; },
                    StatusCode::kMismatch, "rope_layout: sender adjacent, receiver halves"},
            Refusal{"rope_base", [](Rig& r) { r.receiver_options.model.rope_base = 5e5F; }, StatusCode::kMismatch,
                    "rope_base: sender 10000, receiver 500000"},
            Refusal{"rope_digest", [](Rig& r) { r.receiver_options.model.rope_digest = 0; }, StatusCode::kMismatch,
                    "rope_digest: sender 0xc3, receiver 0x0"},
            Refusal{"protocol", [](Rig& r) { r.hello.protocol = 2; }, StatusCode::kVersionUnsupported,
                    "protocol: sender 2, receiver 1"},
            Refusal{"precision",
                    [](Rig& r) { r.receiver_options.precision = codec::ParsePrecision("int4,sinks=8").value(); },
                    StatusCode::kPrecisionUnsupported, "precision: sender int4, receiver int4,sinks=8"},
            Refusal{"context", [](Rig& r) { r.receiver_options.max_context_tokens = 299; },
                    StatusCode::kCapacityExceeded, "context: 300 tokens are needed, the receiver has 299"},
            Refusal{"hello_beyond_limits", [](Rig& r) { r.hello.num_context_tokens = 199; },
                    StatusCode::kInvalidArgument, "num_context_tokens 199"})),
    [](const auto& suite) {
      return test::CarrierName(std::get<0>(suite.param)) + "_" + std::get<1>(suite.param).name;
    });

TEST(HandshakeMemoryTest, APromptThatCanNeverFitIsRefusedAtOnceWithBothSizes) {
  Rig rig("int4", 200);
  cache::MemoryAccount small(10'000);
  rig.receiver_options.account = &small;
  const test::EndpointPair pair = test::Connect(test::Carrier::kLoopback);
  const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
  EXPECT_EQ(outcome.sender.code(), StatusCode::kCapacityExceeded);
  EXPECT_NE(outcome.sender.message().find("10000"), std::string::npos) << outcome.sender.message();
  EXPECT_EQ(outcome.sender_report.num_layers, 0U);
}

TEST(HandshakeMemoryTest, AnyPrecisionIsTakenAsReceivedUnlessOneIsAskedFor) {
  Rig rig("int8,sinks=3", 200);
  const test::EndpointPair pair = test::Connect(test::Carrier::kLoopback);
  EXPECT_TRUE(RunBoth(rig, *pair.first, *pair.second).received.ok());
  rig.receiver_options.precision = rig.hello.precision;
  EXPECT_TRUE(RunBoth(rig, *pair.first, *pair.second).received.ok());
}

}  // namespace
}  // namespace kvant::transfer
