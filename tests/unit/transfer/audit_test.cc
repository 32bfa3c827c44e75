#include "kvant/transfer/audit.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kvant/base/hash.h"
#include "kvant/transport/loopback.h"
#include "kvant/transport/tap.h"
#include "support/wire_samples.h"
#include "unit/transfer/rig.h"

namespace kvant::transfer {
namespace {

using Frames = std::vector<std::vector<std::byte>>;

// What a session of this precision sends.
Frames SentFrames(const char* word) {
  test::Rig rig(word, 300, {4, 2, 48});
  transport::LoopbackPair pair = transport::MakeLoopback().value();
  Frames frames;
  transport::TapEndpoint tap(pair.first.get(), [&](std::span<const std::byte> message) {
    frames.emplace_back(message.begin(), message.end());
    return OkStatus();
  });
  EXPECT_TRUE(test::RunBoth(rig, tap, *pair.second).sender.ok());
  EXPECT_EQ(tap.counters().sent_messages, frames.size());
  return frames;
}

// The faults of each frame, then those of the end.
std::vector<std::vector<Status>> Audit(const Frames& frames) {
  SessionAudit audit;
  std::vector<std::vector<Status>> faults;
  for (const auto& frame : frames) {
    const wire::FrameExamination found = wire::ExamineFrame(frame);
    faults.push_back(found.view ? audit.Take(*found.view) : found.faults);
  }
  faults.push_back(audit.End());
  return faults;
}

size_t NumFaults(const Frames& frames) {
  size_t count = 0;
  for (const auto& faults : Audit(frames)) {
    count += faults.size();
  }
  return count;
}

TEST(AuditTest, ASessionAsSentHasNoFault) {
  for (const char* word : {"fp16", "int8", "int4,eq=off", "spectrum:b=0.5", "spectrum:b=0.4,eq=off,sinks=0",
                           "spectrum:b=0.3,int4=pages"}) {
    const Frames frames = SentFrames(word);
    EXPECT_EQ(frames.size(), 6U) << "hello, 4 layers, finish";
    EXPECT_EQ(NumFaults(frames), 0U) << word;
  }
}

TEST(AuditTest, TheOrderOfASessionCounts) {
  const Frames frames = SentFrames("int8");
  for (size_t missing = 1; missing < frames.size(); ++missing) {
    Frames some = frames;
    some.erase(some.begin() + static_cast<ptrdiff_t>(missing));
    EXPECT_EQ(NumFaults(some), 1U) << "without frame " << missing;
  }
  Frames twice = frames;
  twice.insert(twice.begin() + 2, frames[1]);
  EXPECT_EQ(Audit(twice)[2].at(0).message(), "layer 0 where layer 1 is due");
  twice = frames;
  twice.push_back(frames[0]);
  EXPECT_EQ(Audit(twice)[6].at(0).message(), "a second hello in a session");
  const Frames cut(frames.begin(), frames.begin() + 3);
  EXPECT_EQ(Audit(cut).back().at(0).message(), "the session ends before layer 2 of 4");
}

TEST(AuditTest, FramesWithoutAHelloStandForThemselves) {
  const Frames frames = SentFrames("int4");
  EXPECT_EQ(NumFaults({frames[3], frames[1], frames[3], frames[5]}), 0U);
}

TEST(AuditTest, ALayerOfAnotherPromptIsFound) {
  Frames frames = SentFrames("int8");
  frames[2] = SentFrames("int4")[2];
  const auto faults = Audit(frames);
  ASSERT_EQ(faults[2].size(), 1U);
  EXPECT_EQ(faults[2][0].code(), StatusCode::kCorruption);
  EXPECT_TRUE(faults[3].empty());
}

TEST(AuditTest, WhatABlockHoldsIsChecked) {
  Frames frames = SentFrames("spectrum:b=0.5,eq=off,sinks=0");
  const uint16_t infinity = 0x7C00;
  const size_t ids = 64 + 16;  // of head 0, after the tier counts
  frames[1][ids] ^= std::byte{1};
  std::memcpy(frames[2].data() + frames[2].size() - 2, &infinity, 2);
  const auto faults = Audit(frames);
  ASSERT_EQ(faults[1].size(), 1U);
  EXPECT_EQ(faults[1][0].code(), StatusCode::kCorruption) << faults[1][0].message();
  ASSERT_EQ(faults[2].size(), 1U);
  EXPECT_EQ(faults[2][0].code(), StatusCode::kNumeric) << faults[2][0].message();
}

TEST(AuditTest, EveryGoldenFrameIsSound) {
  for (const auto& samples : {test::GoldenSamples(), test::AnswerSamples()}) {
    for (const test::WireSample& sample : samples) {
      SessionAudit audit;
      EXPECT_TRUE(audit.Take(wire::OpenFrame(sample.frame.bytes()).value()).empty()) << sample.name;
    }
  }
}

}  // namespace
}  // namespace kvant::transfer
