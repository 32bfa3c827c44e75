#include "kvant/wire/frame.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kvant/base/hash.h"
#include "kvant/wire/messages.h"
#include "support/wire_samples.h"

namespace kvant::wire {
namespace {

// A valid frame, a field of its header overwritten, and the checksum made to fit again where asked.
template <typename T>
std::vector<std::byte> Patched(size_t offset, T value, bool reseal) {
  const Buffer frame = EncodeDone(7, {10, 2}).value();
  std::vector<std::byte> bytes(frame.bytes().begin(), frame.bytes().end());
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  if (reseal) {
    std::memset(bytes.data() + 32, 0, 8);
    const uint64_t checksum = Hash64(bytes);
    std::memcpy(bytes.data() + 32, &checksum, sizeof checksum);
  }
  return bytes;
}

StatusCode CodeOf(std::span<const std::byte> bytes) { return OpenFrame(bytes).status().code(); }

TEST(FrameTest, HeaderLiesAsTheDocumentSays) {
  const Buffer frame = EncodeDone(0x1122334455667788, {10, 2}).value();
  ASSERT_EQ(frame.size(), kHeaderBytes + 12);
  EXPECT_EQ(std::memcmp(frame.bytes().data(), "KVNT\x01\x00\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00", 16), 0);
  EXPECT_EQ(std::memcmp(frame.bytes().data() + 16, "\x0C\0\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11", 16), 0);
}

TEST(FrameTest, ChecksumIsOneHashOverTheFrameWithTheFieldZero) {
  const auto bytes = Patched<uint8_t>(0, 'K', true);
  EXPECT_TRUE(OpenFrame(bytes).ok());
  const Buffer frame = EncodeDone(7, {10, 2}).value();
  EXPECT_EQ(std::memcmp(bytes.data(), frame.bytes().data(), bytes.size()), 0);
}

TEST(FrameTest, OpensWhatWasEncoded) {
  const Buffer frame = EncodeCancel(99).value();
  const auto view = OpenFrame(frame.bytes());
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->header, (FrameHeader{FrameType::kCancel, 0, 0, 99}));
  EXPECT_TRUE(view->payload.empty());
}

TEST(FrameTest, EachFaultHasItsCode) {
  EXPECT_EQ(CodeOf(Patched<uint32_t>(0, 0x20544547, true)), StatusCode::kCorruption) << "another magic";
  EXPECT_EQ(CodeOf(Patched<uint16_t>(4, 2, true)), StatusCode::kVersionUnsupported);
  EXPECT_EQ(CodeOf(Patched<uint16_t>(4, 0, true)), StatusCode::kVersionUnsupported);
  EXPECT_EQ(CodeOf(Patched<uint16_t>(6, 0, true)), StatusCode::kInvalidArgument) << "type";
  EXPECT_EQ(CodeOf(Patched<uint16_t>(6, 8, true)), StatusCode::kInvalidArgument) << "type";
  EXPECT_EQ(CodeOf(Patched<uint32_t>(8, 1, true)), StatusCode::kInvalidArgument) << "flags";
  EXPECT_EQ(CodeOf(Patched<uint32_t>(12, 1, true)), StatusCode::kInvalidArgument) << "layer of a done frame";
  EXPECT_EQ(CodeOf(Patched<uint64_t>(16, 13, true)), StatusCode::kOutOfRange) << "truncated";
  EXPECT_EQ(CodeOf(Patched<uint64_t>(16, 11, true)), StatusCode::kCorruption) << "bytes after the payload";
  EXPECT_EQ(CodeOf(Patched<uint64_t>(16, kMaxPayloadBytes + 1, true)), StatusCode::kCapacityExceeded);
  EXPECT_EQ(CodeOf(Patched<uint64_t>(16, UINT64_MAX, true)), StatusCode::kCapacityExceeded);
  EXPECT_EQ(CodeOf(Patched<uint64_t>(16, UINT64_MAX - kHeaderBytes + 1, true)), StatusCode::kCapacityExceeded);
  EXPECT_EQ(CodeOf(Patched<uint64_t>(24, 8, false)), StatusCode::kCorruption) << "checksum";
}

TEST(FrameTest, EveryCutIsTruncation) {
  const Buffer frame = EncodeDone(7, {10, 2}).value();
  for (size_t length = 0; length < frame.size(); ++length) {
    EXPECT_EQ(CodeOf(frame.bytes().first(length)), StatusCode::kOutOfRange) << length;
  }
}

TEST(FrameTest, EveryFlippedBitIsRefused) {
  for (const auto& sample : test::GoldenSamples()) {
    std::vector<std::byte> bytes(sample.frame.bytes().begin(), sample.frame.bytes().end());
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      ASSERT_FALSE(OpenFrame(bytes).ok()) << sample.name << " bit " << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(FrameTest, ARequestOfAnotherProtocolIsNamed) {
  const std::string_view request = "GET /v1/models HTTP/1.1\r\nHost: localhost:8080\r\n\r\n";
  const Status status = OpenFrame(std::as_bytes(std::span(request))).status();
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_NE(status.message().find("magic"), std::string::npos);
}

TEST(FrameTest, ExaminationNamesEveryFault) {
  std::vector<std::byte> bytes = Patched<uint32_t>(8, 1, false);  // flags
  bytes[12] = std::byte{5};                                       // the layer of a done frame
  const FrameExamination found = ExamineFrame(bytes);
  ASSERT_EQ(found.faults.size(), 3U);
  EXPECT_EQ(found.faults[0].code(), StatusCode::kCorruption);
  EXPECT_EQ(found.faults[1].message(), "flags 1, must be 0");
  EXPECT_EQ(found.faults[2].message(), "layer 5, must be 0");
  EXPECT_EQ(found.faults[0].message(), OpenFrame(bytes).status().message()) << "the first one is OpenFrame's";
  EXPECT_NE(found.stored_checksum, found.computed_checksum);
  ASSERT_TRUE(found.view.has_value());
  EXPECT_EQ(DecodeDone(*found.view).value(), (Done{10, 2}));
}

TEST(FrameTest, ExaminationOfASoundFrameIsOpenFrame) {
  const Buffer frame = EncodeDone(7, {10, 2}).value();
  const FrameExamination found = ExamineFrame(frame.bytes());
  EXPECT_TRUE(found.faults.empty());
  EXPECT_EQ(found.stored_checksum, found.computed_checksum);
  ASSERT_TRUE(found.view.has_value());
  EXPECT_EQ(found.view->header, OpenFrame(frame.bytes())->header);
  EXPECT_EQ(AnnouncedBytes(frame.bytes()), frame.size());
}

TEST(FrameTest, WhatIsNoFrameHasOneFaultAndNoLength) {
  for (const auto& bytes : {Patched<uint32_t>(0, 0x20544547, true), Patched<uint16_t>(4, 2, true),
                            Patched<uint64_t>(16, kMaxPayloadBytes + 1, true)}) {
    const FrameExamination found = ExamineFrame(bytes);
    ASSERT_EQ(found.faults.size(), 1U);
    EXPECT_EQ(found.faults[0].code(), CodeOf(bytes));
    EXPECT_FALSE(found.view.has_value());
    EXPECT_FALSE(AnnouncedBytes(bytes).has_value());
  }
  EXPECT_EQ(AnnouncedBytes(Patched<uint64_t>(16, 1000, false)), kHeaderBytes + 1000);
  EXPECT_EQ(ExamineFrame(Patched<uint64_t>(16, 1000, false)).faults.size(), 1U);
  EXPECT_EQ(ExamineFrame({}).faults.at(0).code(), StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace kvant::wire
