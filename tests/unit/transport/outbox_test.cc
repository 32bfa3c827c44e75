#include "transport/outbox.h"

#include <gtest/gtest.h>

namespace kvant::transport {
namespace {

const Clock::time_point kStart{std::chrono::seconds(1000)};
Clock::time_point At(int64_t ns) { return kStart + std::chrono::nanoseconds(ns); }
Buffer Message(size_t num_bytes) { return Buffer::Allocate(num_bytes).value(); }

// One byte takes one nanosecond: sizes are times.
class OutboxTest : public testing::Test {
 protected:
  OperationId Push(size_t num_bytes, int64_t now, Deadline deadline = Deadline::max()) {
    return outbox_.Push(Message(num_bytes), At(now), deadline);
  }
  void ExpectReady(uint64_t sequence, size_t num_bytes) {
    ASSERT_TRUE(outbox_.has_ready());
    const Outgoing outgoing = outbox_.TakeReady();
    EXPECT_EQ(outgoing.sequence, sequence);
    EXPECT_EQ(outgoing.message.size(), num_bytes);
  }
  void ExpectCompletion(OperationId id, StatusCode code) {
    ASSERT_TRUE(outbox_.has_completion());
    const Completion completion = outbox_.TakeCompletion();
    EXPECT_EQ(completion.id, id);
    EXPECT_EQ(completion.status.code(), code);
  }
  Outbox outbox_{1.0, 1000};
};

TEST_F(OutboxTest, AMessageIsDeliveredWhenThePeerSaysSo) {
  const OperationId first = Push(100, 0);
  const OperationId second = Push(200, 0);
  outbox_.Advance(At(99));
  EXPECT_FALSE(outbox_.has_ready());
  outbox_.Advance(At(300));
  ExpectReady(1, 100);
  ExpectReady(2, 200);
  EXPECT_FALSE(outbox_.has_completion());
  EXPECT_TRUE(outbox_.Take({1, 0, 0}, At(400)));
  ExpectCompletion(first, StatusCode::kOk);
  EXPECT_FALSE(outbox_.is_idle());
  EXPECT_TRUE(outbox_.Take({2, 2, 300}, At(500)));
  ExpectCompletion(second, StatusCode::kOk);
  EXPECT_TRUE(outbox_.is_idle());
  EXPECT_EQ(outbox_.delivered_bytes(), 300U);
}

TEST_F(OutboxTest, RoomIsFreeWhenThePeerHasTakenTheMessage) {
  Push(700, 0);
  EXPECT_FALSE(outbox_.HasRoom(400));
  outbox_.Advance(At(700));
  EXPECT_TRUE(outbox_.Take({1, 0, 0}, At(700)));
  EXPECT_FALSE(outbox_.HasRoom(400)) << "there, not taken";
  EXPECT_TRUE(outbox_.Take({1, 1, 700}, At(700)));
  EXPECT_TRUE(outbox_.HasRoom(5000)) << "a message larger than all room passes alone";
  outbox_.Limit(300);
  Push(100, 800);
  EXPECT_FALSE(outbox_.HasRoom(201));
}

TEST_F(OutboxTest, ThereIsAnEndToTheNumberOfMessages) {
  Outbox outbox(0.0, UINT64_MAX);
  for (uint64_t i = 0; i < Outbox::kMaxMessages; ++i) {
    ASSERT_TRUE(outbox.HasRoom(1));
    outbox.Push(Message(1), At(0), Deadline::max());
  }
  EXPECT_FALSE(outbox.HasRoom(1));
  outbox.Advance(At(0));
  EXPECT_TRUE(outbox.Take({1, 1, 1}, At(0)));
  EXPECT_TRUE(outbox.HasRoom(1));
}

TEST_F(OutboxTest, WhatHasLeftIsRevokedWhenItIsLateOrCancelled) {
  const OperationId late = Push(100, 0, At(150));
  const OperationId unwanted = Push(100, 0);
  outbox_.Advance(At(200));
  EXPECT_EQ(outbox_.TakeRevoked(), std::vector<uint64_t>{1});
  ExpectCompletion(late, StatusCode::kTimeout);
  EXPECT_TRUE(outbox_.Cancel(unwanted, At(210)));
  EXPECT_FALSE(outbox_.Cancel(unwanted, At(210)));
  EXPECT_EQ(outbox_.TakeRevoked(), std::vector<uint64_t>{2});
  ExpectCompletion(unwanted, StatusCode::kCancelled);
  EXPECT_FALSE(outbox_.HasRoom(900)) << "until the peer has let go of them";
  EXPECT_TRUE(outbox_.Take({2, 2, 200}, At(300)));
  EXPECT_TRUE(outbox_.HasRoom(900));
  EXPECT_FALSE(outbox_.has_completion());
}

TEST_F(OutboxTest, WhatHasNotLeftIsNotMentionedToThePeer) {
  const OperationId first = Push(100, 0);
  EXPECT_TRUE(outbox_.Cancel(first, At(50)));
  ExpectCompletion(first, StatusCode::kCancelled);
  EXPECT_TRUE(outbox_.TakeRevoked().empty());
  Push(10, 60);
  outbox_.Advance(At(100));
  ExpectReady(1, 10);
}

TEST_F(OutboxTest, ClaimsThatCannotBeAreFound) {
  Push(100, 0);
  outbox_.Advance(At(100));
  EXPECT_FALSE(outbox_.Take({2, 0, 0}, At(100)));
  EXPECT_FALSE(outbox_.Take({1, 2, 100}, At(100)));
  EXPECT_FALSE(outbox_.Take({1, 1, 101}, At(100)));
  EXPECT_TRUE(outbox_.Take({1, 1, 100}, At(100)));
  EXPECT_FALSE(outbox_.Take({0, 1, 100}, At(100))) << "it cannot go back";
}

TEST_F(OutboxTest, CutOffEndsEverything) {
  const OperationId sent = Push(100, 0);
  const OperationId waiting = Push(100, 0);
  outbox_.Advance(At(100));
  outbox_.CutOff(At(150));
  ExpectCompletion(waiting, StatusCode::kTransportClosed);
  ExpectCompletion(sent, StatusCode::kTransportClosed);
  EXPECT_TRUE(outbox_.is_idle());
  EXPECT_FALSE(outbox_.has_ready());
  EXPECT_TRUE(outbox_.TakeRevoked().empty());
}

}  // namespace
}  // namespace kvant::transport
