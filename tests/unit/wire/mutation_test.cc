#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>

#include "kvant/base/hash.h"
#include "kvant/wire/answer.h"
#include "kvant/wire/layer_frame.h"
#include "kvant/wire/maps_frame.h"
#include "kvant/wire/messages.h"
#include "kvant/wire/upgrade.h"
#include "support/wire_samples.h"

namespace kvant::wire {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr size_t kChecksumOffset = 32;
constexpr int kNumMutations = 100'000;

size_t Below(Random& random, size_t limit) { return random() % limit; }

Bytes BytesOf(const Result<Buffer>& frame) {
  EXPECT_TRUE(frame.ok());
  return {frame->bytes().begin(), frame->bytes().end()};
}

// The frame that a decoded layer encodes to.
Bytes EncodeAgain(uint64_t session, const LayerView& view) {
  BlockFrame frame = AllocateLayer(session, view.layer, view.layout).value();
  std::memcpy(frame.block().data(), view.block.data(), view.block.size());
  const Buffer sealed = std::move(frame).Seal();
  return {sealed.bytes().begin(), sealed.bytes().end()};
}

Bytes EncodeUpgradeAgain(uint64_t session, const UpgradeView& view) {
  BlockFrame frame = AllocateUpgrade(session, view.layer, view.layout).value();
  std::memcpy(frame.block().data(), view.block.data(), view.block.size());
  const Buffer sealed = std::move(frame).Seal();
  return {sealed.bytes().begin(), sealed.bytes().end()};
}

// What the content of received bytes encodes to again; nothing when they are refused.
std::optional<Bytes> Canonical(const Bytes& bytes) {
  const auto opened = OpenFrame(bytes);
  if (!opened.ok()) {
    return std::nullopt;
  }
  const uint64_t session = opened->header.session;
  const auto again = [&](const auto& decoded, auto&& encode) -> std::optional<Bytes> {
    return decoded.ok() ? std::optional(BytesOf(encode(session, *decoded))) : std::nullopt;
  };
  switch (opened->header.type) {
    case FrameType::kHello: return again(DecodeHello(*opened), EncodeHello);
    case FrameType::kHelloReply: return again(DecodeHelloReply(*opened), EncodeHelloReply);
    case FrameType::kFinish: return again(DecodeFinish(*opened), EncodeFinish);
    case FrameType::kDone: return again(DecodeDone(*opened), EncodeDone);
    case FrameType::kAnswerRequest: return again(DecodeAnswerRequest(*opened), EncodeAnswerRequest);
    case FrameType::kAnswerText: return again(DecodeAnswerText(*opened), EncodeAnswerText);
    case FrameType::kAnswerEnd: return again(DecodeAnswerEnd(*opened), EncodeAnswerEnd);
    case FrameType::kError: return again(DecodeError(*opened), EncodeError);
    case FrameType::kCancel:
      return CheckCancel(*opened).ok() ? std::optional(BytesOf(EncodeCancel(session))) : std::nullopt;
    case FrameType::kLayer: {
      const auto view = DecodeLayer(*opened);
      return view.ok() ? std::optional(EncodeAgain(session, *view)) : std::nullopt;
    }
    case FrameType::kSession: return again(DecodeSession(*opened), EncodeSession);
    case FrameType::kMaps: return again(DecodeMaps(*opened), EncodeMaps);
    case FrameType::kUpgradeOffer: return again(DecodeUpgradeOffer(*opened), EncodeUpgradeOffer);
    case FrameType::kUpgradeRequest: return again(DecodeUpgradeRequest(*opened), EncodeUpgradeRequest);
    case FrameType::kUpgrade: {
      const auto view = DecodeUpgrade(*opened);
      return view.ok() ? std::optional(EncodeUpgradeAgain(session, *view)) : std::nullopt;
    }
  }
  return std::nullopt;
}

// Most interesting bytes stand in the first hundred: headers, prefixes and small payloads.
size_t SomeOffset(Random& random, const Bytes& bytes) {
  return Below(random, random() % 4 == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 104));
}

void FlipBits(Random& random, Bytes& bytes) {
  for (size_t i = 0, count = 1 + Below(random, 4); i < count; ++i) {
    bytes[SomeOffset(random, bytes)] ^= std::byte{1} << Below(random, 8);
  }
}

void SetField(Random& random, Bytes& bytes) {
  constexpr uint64_t kValues[] = {0,
                                  1,
                                  2,
                                  127,
                                  128,
                                  255,
                                  0x7FFF,
                                  0xFFFF,
                                  0x7FFFFFFF,
                                  0x80000000,
                                  0xFFFFFFFF,
                                  uint64_t{1} << 36,
                                  uint64_t{1} << 63,
                                  UINT64_MAX,
                                  UINT64_MAX - 39};
  const size_t width = size_t{1} << Below(random, 4);
  const size_t offset =
      std::min(SomeOffset(random, bytes) / width * width, bytes.size() - std::min(width, bytes.size()));
  const uint64_t value = kValues[Below(random, std::size(kValues))];
  std::memcpy(bytes.data() + offset, &value, std::min(width, bytes.size() - offset));
}

void Extend(Random& random, Bytes& bytes) {
  for (size_t i = 0, count = 1 + Below(random, 64); i < count; ++i) {
    bytes.push_back(static_cast<std::byte>(random()));
  }
}

void Mutate(Random& random, const std::vector<Bytes>& seeds, Bytes& bytes) {
  switch (Below(random, 6)) {
    case 0: FlipBits(random, bytes); break;
    case 1: bytes.resize(Below(random, bytes.size())); break;
    case 2: Extend(random, bytes); break;
    case 3: {  // the head of one frame on the body of another
      const Bytes& other = seeds[Below(random, seeds.size())];
      std::copy_n(other.begin(), Below(random, std::min(other.size(), bytes.size())), bytes.begin());
      break;
    }
    case 4: {  // a piece repeated elsewhere
      const size_t from = Below(random, bytes.size());
      const size_t to = Below(random, bytes.size());
      std::copy_n(Bytes(bytes).begin() + static_cast<std::ptrdiff_t>(from),
                  Below(random, bytes.size() - std::max(from, to)), bytes.begin() + static_cast<std::ptrdiff_t>(to));
      break;
    }
    default: SetField(random, bytes); break;
  }
}

// What a faulty peer would do that knows the format: lengths and checksum fit what it says.
void Reseal(Random& random, Bytes& bytes) {
  if (bytes.size() < kHeaderBytes) {
    return;
  }
  if (random() % 2 == 0) {
    const uint64_t payload_bytes = bytes.size() - kHeaderBytes;
    std::memcpy(bytes.data() + 16, &payload_bytes, sizeof payload_bytes);
  }
  std::memset(bytes.data() + kChecksumOffset, 0, 8);
  const uint64_t checksum = Hash64(bytes);
  std::memcpy(bytes.data() + kChecksumOffset, &checksum, sizeof checksum);
}

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const auto& sample : test::GoldenSamples()) {
    seeds.emplace_back(sample.frame.bytes().begin(), sample.frame.bytes().end());
  }
  return seeds;
}

TEST(MutationTest, SeedsAreAccepted) {
  for (const Bytes& seed : Seeds()) {
    EXPECT_EQ(Canonical(seed), seed);
  }
}

TEST(MutationTest, NoDamagedFrameIsAccepted) {
  const std::vector<Bytes> seeds = Seeds();
  Random random(20240607);
  int num_changed = 0;
  for (int i = 0; i < kNumMutations; ++i) {
    const Bytes& seed = seeds[Below(random, seeds.size())];
    Bytes bytes = seed;
    Mutate(random, seeds, bytes);
    num_changed += bytes != seed ? 1 : 0;
    const bool accepted = Canonical(bytes).has_value();
    ASSERT_TRUE(!accepted || std::find(seeds.begin(), seeds.end(), bytes) != seeds.end()) << "mutation " << i;
  }
  EXPECT_GT(num_changed, kNumMutations * 8 / 10);
}

// A checksum that fits hides nothing: what is accepted has one meaning, and that meaning these very bytes.
TEST(MutationTest, AResealedFrameIsRefusedOrMeansItsOwnBytes) {
  const std::vector<Bytes> seeds = Seeds();
  Random random(7);
  int num_accepted = 0;
  for (int i = 0; i < kNumMutations; ++i) {
    Bytes bytes = seeds[Below(random, seeds.size())];
    Mutate(random, seeds, bytes);
    Reseal(random, bytes);
    const auto canonical = Canonical(bytes);
    num_accepted += canonical ? 1 : 0;
    ASSERT_TRUE(!canonical || *canonical == bytes) << "mutation " << i;
  }
  EXPECT_GT(num_accepted, kNumMutations / 20);
  EXPECT_LT(num_accepted, kNumMutations * 9 / 10);
}

}  // namespace
}  // namespace kvant::wire
