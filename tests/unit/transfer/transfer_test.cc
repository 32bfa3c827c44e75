#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "kvant/transport/loopback.h"
#include "kvant/wire/layer_frame.h"
#include "support/block_reference.h"
#include "unit/transfer/rig.h"

namespace kvant::transfer {
namespace {

using test::Outcome;
using test::Rig;
using test::RunBoth;
using wire::FrameType;

transport::LoopbackPair Pair(const transport::LoopbackOptions& options = {}) {
  return transport::MakeLoopback(options).value();
}

void ExpectSamePrompt(Rig& rig, const Received& received) {
  EXPECT_EQ(received.hello, rig.hello);
  EXPECT_EQ(received.finish, rig.finish);
  const cache::Sequence local = rig.LocalPrompt();
  ASSERT_EQ(received.sequence.num_tokens(), local.num_tokens());
  for (uint32_t layer = 0; layer < rig.hello.model.shape.num_layers; ++layer) {
    EXPECT_EQ(received.sequence.layer(layer).split(), local.layer(layer).split());
    EXPECT_EQ(test::StoredBytes(received.sequence.layer(layer), rig.hello.model.shape.num_kv_heads),
              test::StoredBytes(local.layer(layer), rig.hello.model.shape.num_kv_heads))
        << "layer " << layer;
  }
}

class EveryPrecision : public testing::TestWithParam<std::tuple<const char*, uint32_t, codec::PromptTail>> {};

TEST_P(EveryPrecision, ArrivesAsIfEncodedInPlace) {
  const auto& [word, num_tokens, tail] = GetParam();
  Rig rig(word, num_tokens);
  rig.sender_options.tail = tail;
  transport::LoopbackPair pair = Pair();
  const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
  ASSERT_TRUE(outcome.sender.ok()) << outcome.sender.message();
  ASSERT_TRUE(outcome.received.ok()) << outcome.received.status().message();
  ExpectSamePrompt(rig, *outcome.received);
}

INSTANTIATE_TEST_SUITE_P(All, EveryPrecision,
                         testing::Combine(testing::Values("fp16", "int8", "int8,eq=off,sinks=0", "int4", "int4,eq=off",
                                                          "int4,sinks=128,residual=32", "int8,residual=inf", "spectrum",
                                                          "spectrum:b=0.5,eq=off,sinks=0"),
                                          testing::Values(1U, 4U, 5U, 131U, 132U, 133U, 260U, 515U),
                                          testing::Values(codec::PromptTail::kEncodeAll,
                                                          codec::PromptTail::kByPosition)));

TEST(TransferTest, ReportsSayWhatTheTransportCounted) {
  for (const char* word : {"fp16", "int8", "int4"}) {
    Rig rig(word, 300);
    transport::LoopbackPair pair = Pair();
    const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
    ASSERT_TRUE(outcome.sender.ok() && outcome.received.ok());
    const TransferReport& sent = outcome.sender_report;
    const TransferReport& got = outcome.receiver_report;
    EXPECT_EQ(sent.sent.total(), pair.first->counters().sent_bytes);
    EXPECT_EQ(sent.received.total(), pair.first->counters().received_bytes);
    EXPECT_EQ(got.received.total(), pair.second->counters().received_bytes);
    EXPECT_EQ(got.sent.total(), pair.second->counters().sent_bytes);
    EXPECT_EQ(sent.sent.of(FrameType::kHello), 104U);
    EXPECT_EQ(sent.sent.of(FrameType::kFinish), 68U + 4 * 300);
    EXPECT_EQ(sent.received.of(FrameType::kHelloReply), 48U);
    EXPECT_EQ(sent.received.of(FrameType::kDone), 52U);
    EXPECT_EQ(sent.num_layers, 4U);
    EXPECT_EQ(got.num_layers, 4U);
    EXPECT_EQ(sent.kv_bytes_fp16, 4U * 2 * 2 * 40 * 300 * 2);
    for (const FrameType type : {FrameType::kHello, FrameType::kLayer, FrameType::kFinish}) {
      EXPECT_EQ(sent.sent.of(type), got.received.of(type));
    }
    EXPECT_LE(sent.started, sent.last_message);
  }
}

TEST(TransferTest, AllBytesOfASessionStayWithinThePapersBudget) {
  const std::pair<const char*, double> cases[] = {{"int8,eq=off,sinks=0", 0.52}, {"int4,eq=off,sinks=0", 0.27}};
  for (const auto& [word, limit] : cases) {
    Rig rig(word, 1000, {30, 3, 64});
    transport::LoopbackPair pair = Pair();
    const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
    ASSERT_TRUE(outcome.sender.ok());
    const auto wire_bytes = static_cast<double>(pair.first->counters().sent_bytes + pair.second->counters().sent_bytes);
    EXPECT_LE(wire_bytes / static_cast<double>(outcome.sender_report.kv_bytes_fp16), limit) << word;
  }
}

TEST(TransferTest, BlocksAreThoseOfTheScalarReference) {
  Rig rig("int4", 200);
  transport::LoopbackPair pair = Pair();
  std::thread prefill([&] {
    Sender sender(pair.first.get(), rig.sender_options);
    EXPECT_EQ(rig.SendAll(sender, rig.ExactPrompt()).code(), StatusCode::kTransportClosed);
  });
  const auto deadline = transport::After(std::chrono::seconds(20));
  ASSERT_TRUE(pair.second->Receive(1 << 20, deadline).ok());
  Buffer reply = wire::EncodeHelloReply(rig.sender_options.session, {}).value();
  ASSERT_TRUE(pair.second->Post(std::move(reply), deadline).ok());
  for (uint32_t layer = 0; layer < 4; ++layer) {
    const Buffer bytes = pair.second->Receive(1 << 20, deadline).value();
    const wire::LayerView view = wire::DecodeLayer(wire::OpenFrame(bytes.bytes()).value()).value();
    std::vector<std::byte> expected(view.block.size());
    test::EncodeBlockRef(view.layout, test::MakeRows(view.layout.shape, 200, layer + 1), expected);
    EXPECT_EQ(std::memcmp(expected.data(), view.block.data(), expected.size()), 0) << "layer " << layer;
  }
  pair.second->Close();
  prefill.join();
}

TEST(TransferTest, LayersLeaveWhileTheSenderGoesOn) {
  Rig rig("fp16", 512, {8, 4, 64});
  transport::LoopbackPair pair = Pair({0.001});  // a hello takes 1 ms, a layer 4 s
  Sender sender(pair.first.get(), rig.sender_options);
  Receiver receiver(pair.second.get(), rig.receiver_options);
  std::thread decode([&] { EXPECT_EQ(receiver.Run().status().code(), StatusCode::kCancelled); });
  const cache::Sequence prompt = rig.ExactPrompt();
  ASSERT_TRUE(sender.Handshake(rig.hello).ok());
  for (uint32_t layer = 0; layer < 8; ++layer) {
    ASSERT_TRUE(sender.SendLayer(layer, prompt.layer(layer), nullptr).ok());
  }
  EXPECT_LT(pair.first->counters().sent_messages, 9U) << "posted, not delivered";
  sender.Abort({StatusCode::kCancelled, "enough"});
  decode.join();
}

TEST(TransferTest, TheReportKnowsHowLongTheLineTook) {
  Rig rig("int8", 512, {8, 4, 64});
  constexpr double kGigabits = 0.5;
  transport::LoopbackPair pair = Pair({kGigabits});
  const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
  ASSERT_TRUE(outcome.sender.ok());
  const TransferReport& report = outcome.sender_report;
  const double seconds = std::chrono::duration<double>(report.last_message - report.started).count();
  EXPECT_GE(seconds, 8.0 * static_cast<double>(report.sent.total()) / (kGigabits * 1e9));
}

// Watches how much is posted and not yet completed.
class InFlightGauge : public transport::Endpoint {
 public:
  explicit InFlightGauge(transport::Endpoint* inner) : inner_(inner) {}
  Status WaitForRoom(uint64_t num_bytes, transport::Deadline deadline) override {
    return inner_->WaitForRoom(num_bytes, deadline);
  }
  Result<transport::OperationId> Post(Buffer&& message, transport::Deadline deadline) override {
    in_flight_ += message.size();
    peak_ = std::max(peak_, in_flight_);
    return inner_->Post(std::move(message), deadline);
  }
  Result<transport::Completion> Wait(transport::Deadline deadline) override {
    Result<transport::Completion> completion = inner_->Wait(deadline);
    in_flight_ -= completion.ok() ? completion->num_bytes : 0;
    return completion;
  }
  Result<Buffer> Receive(uint64_t max_bytes, transport::Deadline deadline) override {
    return inner_->Receive(max_bytes, deadline);
  }
  Status Cancel(transport::OperationId id) override { return inner_->Cancel(id); }
  void Close() override { inner_->Close(); }
  transport::Counters counters() const override { return inner_->counters(); }
  uint64_t peak() const { return peak_; }

 private:
  transport::Endpoint* inner_;
  uint64_t in_flight_ = 0;
  uint64_t peak_ = 0;
};

TEST(TransferTest, FramesInFlightAreBounded) {
  Rig rig("fp16", 256, {12, 2, 64});
  const uint64_t layer_bytes = wire::kBlockOffset + uint64_t{256} * 2 * 64 * 4;
  rig.sender_options.max_in_flight_bytes = 2 * layer_bytes + 1;
  transport::LoopbackPair pair = Pair({0.1});  // a layer takes 10 ms
  InFlightGauge gauge(pair.first.get());
  const Outcome outcome = RunBoth(rig, gauge, *pair.second);
  ASSERT_TRUE(outcome.sender.ok()) << outcome.sender.message();
  EXPECT_LE(gauge.peak(), rig.sender_options.max_in_flight_bytes);
  EXPECT_GE(gauge.peak(), layer_bytes);
}

TEST(TransferTest, ASlowReceiverHoldsTheSenderNotTheMemory) {
  Rig rig("fp16", 256, {12, 2, 64});
  transport::LoopbackPair pair = Pair({0, 200'000});  // one layer and a half
  rig.receiver_options.progress = [](uint32_t, uint32_t) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
  const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
  ASSERT_TRUE(outcome.sender.ok()) << outcome.sender.message();
  ExpectSamePrompt(rig, *outcome.received);
}

TEST(TransferTest, ProgressCountsLayers) {
  Rig rig("int8", 140);
  std::vector<uint32_t> seen;
  rig.receiver_options.progress = [&](uint32_t done, uint32_t all) {
    EXPECT_EQ(all, 4U);
    seen.push_back(done);
  };
  transport::LoopbackPair pair = Pair();
  ASSERT_TRUE(RunBoth(rig, *pair.first, *pair.second).received.ok());
  EXPECT_EQ(seen, (std::vector<uint32_t>{1, 2, 3, 4}));
}

TEST(TransferTest, ALayerMayBeFreedWhenItIsSent) {
  Rig rig("int8", 200);
  transport::LoopbackPair pair = Pair({0.05});
  Sender sender(pair.first.get(), rig.sender_options);
  Receiver receiver(pair.second.get(), rig.receiver_options);
  std::optional<Result<Received>> received;
  std::thread decode([&] { received.emplace(receiver.Run()); });
  cache::Sequence prompt = rig.ExactPrompt();
  ASSERT_TRUE(sender.Handshake(rig.hello).ok());
  for (uint32_t layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(sender.SendLayer(layer, prompt.layer(layer), nullptr).ok());
    ASSERT_TRUE(prompt.layer(layer).ShrinkExact(200).ok());
  }
  EXPECT_EQ(rig.sender_account.in_use_bytes(), 0U);
  ASSERT_TRUE(sender.Finish(rig.finish).ok());
  decode.join();
  ExpectSamePrompt(rig, received->value());
}

TEST(TransferTest, OneConnectionCarriesSessionAfterSession) {
  transport::LoopbackPair pair = Pair();
  for (uint64_t session = 1; session <= 3; ++session) {
    Rig rig("int4", 150);
    rig.sender_options.session = session;
    const Outcome outcome = RunBoth(rig, *pair.first, *pair.second);
    ASSERT_TRUE(outcome.sender.ok()) << outcome.sender.message();
    ExpectSamePrompt(rig, *outcome.received);
  }
}

}  // namespace
}  // namespace kvant::transfer
