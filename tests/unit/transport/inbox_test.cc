#include "transport/inbox.h"

#include <gtest/gtest.h>

namespace kvant::transport {
namespace {

Buffer Message(size_t num_bytes) { return Buffer::Allocate(num_bytes).value(); }

class InboxTest : public testing::Test {
 protected:
  // Handles are told apart by their address alone.
  Inbox::Handle HandleOf(uint64_t sequence) { return handles_ + sequence; }
  bool Announce(uint64_t sequence, uint64_t num_bytes) {
    return inbox_.Announce(sequence, num_bytes, HandleOf(sequence));
  }
  void ExpectProgress(uint64_t through, uint64_t messages, uint64_t bytes) {
    const std::optional<Progress> progress = inbox_.TakeProgress();
    ASSERT_TRUE(progress.has_value());
    EXPECT_EQ(progress->through, through);
    EXPECT_EQ(progress->taken_messages, messages);
    EXPECT_EQ(progress->taken_bytes, bytes);
  }
  char handles_[16] = {};
  Inbox inbox_{1000};
};

TEST_F(InboxTest, NothingIsFetchedBeforeItIsExpected) {
  ASSERT_TRUE(Announce(1, 500));
  EXPECT_EQ(inbox_.NextFetch(), std::nullopt);
  EXPECT_EQ(inbox_.Take(499)->status().code(), StatusCode::kCapacityExceeded);
  EXPECT_EQ(inbox_.TakeReleased(), std::vector<Inbox::Handle>{HandleOf(1)});
  ExpectProgress(1, 1, 500);
  ASSERT_TRUE(Announce(2, 400));
  const std::optional<Inbox::Fetch> fetch = inbox_.NextFetch();
  ASSERT_TRUE(fetch.has_value()) << "the last Receive was ready for as many bytes";
  EXPECT_EQ(fetch->handle, HandleOf(2));
  EXPECT_EQ(inbox_.TakeProgress(), std::nullopt);
  inbox_.Finish(2, Message(400));
  ExpectProgress(2, 1, 500);
  EXPECT_EQ(inbox_.Take(400)->value().size(), 400U);
  ExpectProgress(2, 2, 900);
  EXPECT_EQ(inbox_.received_bytes(), 400U);
}

TEST_F(InboxTest, MessagesAreHandedOutInOrder) {
  EXPECT_EQ(inbox_.Take(1000), std::nullopt);
  ASSERT_TRUE(Announce(1, 100));
  ASSERT_TRUE(inbox_.Arrive(2, Message(20)));
  EXPECT_EQ(inbox_.Take(1000), std::nullopt);
  EXPECT_EQ(inbox_.TakeProgress(), std::nullopt) << "2 is there, but may never be handed out";
  inbox_.Finish(inbox_.NextFetch()->sequence, Message(100));
  ExpectProgress(2, 0, 0);
  EXPECT_EQ(inbox_.Take(1000)->value().size(), 100U);
  EXPECT_EQ(inbox_.Take(1000)->value().size(), 20U);
}

TEST_F(InboxTest, AFetchThatFailsIsReportedInItsTurn) {
  ASSERT_TRUE(Announce(1, 100));
  EXPECT_EQ(inbox_.Take(1000), std::nullopt);
  inbox_.Finish(inbox_.NextFetch()->sequence, Status(StatusCode::kOutOfMemory, "none"));
  EXPECT_EQ(inbox_.Take(1000)->status().code(), StatusCode::kOutOfMemory);
  ExpectProgress(1, 1, 100);
}

TEST_F(InboxTest, ARevokedMessageIsLeftOut) {
  EXPECT_EQ(inbox_.Take(1000), std::nullopt);
  ASSERT_TRUE(Announce(1, 100));
  ASSERT_TRUE(Announce(2, 100));
  ASSERT_TRUE(inbox_.Arrive(3, Message(30)));
  const uint64_t fetched = inbox_.NextFetch()->sequence;
  inbox_.Revoke(1);
  inbox_.Revoke(2);
  EXPECT_EQ(inbox_.TakeReleased(), std::vector<Inbox::Handle>{HandleOf(2)}) << "1 is in the carrier's hands";
  inbox_.Finish(fetched, Message(100));
  EXPECT_EQ(inbox_.Take(1000)->value().size(), 30U);
  inbox_.Revoke(3);
  ExpectProgress(3, 3, 230);
}

TEST_F(InboxTest, APeerThatIgnoresTheRoomIsFound) {
  ASSERT_TRUE(Announce(1, 900));
  EXPECT_FALSE(Announce(2, 101));
  EXPECT_TRUE(Announce(2, 100));
  EXPECT_FALSE(Announce(2, 1)) << "twice";
  EXPECT_FALSE(Announce(Outbox::kMaxMessages + 1, 1)) << "too far ahead";
  EXPECT_FALSE(Announce(3, 0));
  EXPECT_EQ(inbox_.Take(1)->status().code(), StatusCode::kCapacityExceeded);
  EXPECT_FALSE(Announce(1, 1)) << "of the past";
}

TEST_F(InboxTest, AMessageLargerThanAllRoomPassesAlone) {
  ASSERT_TRUE(Announce(1, 5000));
  EXPECT_FALSE(Announce(2, 1));
}

TEST_F(InboxTest, CutOffKeepsWhatHasArrivedWithoutAGap) {
  ASSERT_TRUE(inbox_.Arrive(1, Message(10)));
  ASSERT_TRUE(Announce(2, 100));
  ASSERT_TRUE(inbox_.Arrive(3, Message(30)));
  inbox_.CutOff();
  EXPECT_EQ(inbox_.TakeReleased(), std::vector<Inbox::Handle>{HandleOf(2)});
  EXPECT_EQ(inbox_.Take(1000)->value().size(), 10U);
  EXPECT_EQ(inbox_.Take(1000), std::nullopt);
}

TEST_F(InboxTest, DropArrivedKeepsNothing) {
  ASSERT_TRUE(inbox_.Arrive(1, Message(10)));
  inbox_.DropArrived();
  EXPECT_EQ(inbox_.Take(1000), std::nullopt);
  EXPECT_EQ(inbox_.received_messages(), 0U);
}

}  // namespace
}  // namespace kvant::transport
