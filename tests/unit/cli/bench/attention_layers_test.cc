#include "cli/bench/attention_layers.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvant::cli {
namespace {

constexpr codec::CacheShape kShape = {1, 2, 64};
constexpr uint32_t kQueryHeads = 6;

codec::Precision Parse(const char* word) { return codec::ParsePrecision(word).value(); }

TEST(CheckAttention, EveryPrecisionOfEveryInstructionSetPasses) {
  ThreadPool pool(2);
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    AttendJob job(isa, kShape, kQueryHeads, &pool);
    for (const char* word : {"fp16", "int8", "int8,eq=off", "int4", "int4,eq=off", "spectrum:b=0.4",
                             "spectrum:b=0.7,eq=off", "spectrum:b=0.3,int4=pages", "sws:0.5", "pnmix:3/1@50%",
                             "pnmix:4/1@35%,v=4", "pairs:2.0", "pairs:2,v=2", "pairs:3,v=8,g=64"}) {
      const Status status = CheckAttention(kShape, Parse(word), isa, job, &pool);
      EXPECT_TRUE(status.ok()) << kernels::IsaName(isa) << ": " << status.message();
    }
  }
}

TEST(AttendJob, SeveralPlacesAtOnceAreEachAsAlone) {
  ThreadPool pool(2);
  cache::MemoryAccount account;
  const kernels::Isa isa = kernels::BestIsa();
  AttendJob job(isa, kShape, kQueryHeads, &pool);
  auto layer = RandomLayer(kShape, Parse("fp16"), isa, 4 * cache::ChunkStart(1) - 30, &account, &pool);
  ASSERT_TRUE(layer.ok());
  const std::vector<AttendJob::Place> places = {{&*layer, 0}, {&*layer, 2}};
  job.Run({&places[1], 1}, 2);
  const std::vector<float> alone(job.output().begin(), job.output().end());
  job.Run({&places[0], 1}, 2);
  EXPECT_FALSE(std::equal(alone.begin(), alone.end(), job.output().begin()));
  job.Run(places, 2);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), job.output().begin()));
}

TEST(AttentionLayers, ALoadIsTheBytesOfItsTokens) {
  ThreadPool pool(2);
  cache::MemoryAccount account;
  const kernels::Isa isa = kernels::BestIsa();
  const auto layers =
      AttentionLayers::Make(kShape, Parse("int8,eq=off,sinks=0"), isa, 1024, 1'000'000, &account, &pool);
  ASSERT_TRUE(layers.ok()) << layers.status().message();
  EXPECT_GE(account.in_use_bytes(), 1'000'000U);
  constexpr uint64_t kRowBytes = 64 + 2;  // codes and scale
  EXPECT_EQ(layers->load().tokens, 1024U);
  EXPECT_EQ(layers->load().bytes, 1024 * 2 * 2 * kRowBytes);
}

TEST(AttentionLayers, ALoadOfPairsIsTheBytesOfItsPages) {
  ThreadPool pool(1);
  cache::MemoryAccount account;
  codec::Precision precision = Parse("pnmix:3/1@50%");
  precision.num_sinks = 0;
  const auto layers = AttentionLayers::Make(kShape, precision, kernels::BestIsa(), 1024, 1'000'000, &account, &pool);
  ASSERT_TRUE(layers.ok());
  // 64 channels: 128 · 64 · 2 bits of keys, as many of values, 256 bytes of key and 512 of value parameters.
  EXPECT_EQ(layers->load().bytes, 8U * 2 * (2048 + 256 + 2048 + 512));
  EXPECT_EQ(layers->load().tokens, 1024U);
}

TEST(AttentionLayers, PairsThatTheShapeCannotHaveAreNamed) {
  ThreadPool pool(1);
  cache::MemoryAccount account;
  const auto status = [&](const codec::CacheShape& shape, const char* word) {
    return AttentionLayers::Make(shape, Parse(word), kernels::Isa::kScalar, 128, 0, &account, &pool).status();
  };
  EXPECT_EQ(status({1, 1, 100}, "pairs:2").code(), StatusCode::kModelUnsupported);
  EXPECT_EQ(status({1, 1, 40}, "spectrum:b=0.3,int4=pages").code(), StatusCode::kModelUnsupported);
  EXPECT_EQ(status({1, 1, 64}, "pairs:2,vg=128").code(), StatusCode::kInvalidArgument);
}

TEST(AttentionLayers, TiersHaveTheCountsOfTheBudget) {
  ThreadPool pool(2);
  cache::MemoryAccount account;
  const auto layers = AttentionLayers::Make(kShape, Parse("spectrum:b=0.3,eq=off,sinks=0"), kernels::BestIsa(), 1000,
                                            1'000'000, &account, &pool);
  ASSERT_TRUE(layers.ok()) << layers.status().message();
  EXPECT_EQ(layers->tier_counts(), (codec::TierCounts{0, 199, 801, 0}));
  EXPECT_EQ(layers->load().tokens, 1000U);
  EXPECT_EQ(layers->load().bytes, 2U * 2 * (199 * (64 + 2) + 801 * (32 + 2)));
}

TEST(AttentionLayers, EveryRoundAttendsToTheSameContents) {
  ThreadPool pool(2);
  cache::MemoryAccount account;
  const kernels::Isa isa = kernels::BestIsa();
  AttendJob job(isa, kShape, kQueryHeads, &pool);
  const auto layers = AttentionLayers::Make(kShape, Parse("int4"), isa, 1024, 1'000'000, &account, &pool);
  ASSERT_TRUE(layers.ok());
  layers->Attend(job, 0);
  const std::vector<float> first(job.output().begin(), job.output().end());
  for (uint32_t round = 1; round < 5; ++round) {
    layers->Attend(job, round);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), job.output().begin())) << round;
  }
}

}  // namespace
}  // namespace kvant::cli
