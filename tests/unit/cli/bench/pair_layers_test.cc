#include "cli/bench/pair_layers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/bench/pack_work.h"
#include "cli/precision_list.h"

namespace kvant::cli {
namespace {

constexpr codec::CacheShape kShape = {1, 2, 64};
constexpr uint32_t kQueryHeads = 6;

codec::PairPrecision Parse(const char* word) { return codec::ParsePairPrecision(word).value(); }

TEST(CheckPairAttention, EveryPrecisionOfEveryInstructionSetPasses) {
  ThreadPool pool(2);
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    AttendJob job(isa, kShape, kQueryHeads, &pool);
    for (const char* word : {"pnmix:3/1@50%", "pnmix:4/1@35%,v=4", "pairs:2.0", "pairs:2,v=2", "pairs:3,v=8,g=64"}) {
      const Status status = CheckPairAttention(kShape, Parse(word), isa, job, &pool);
      EXPECT_TRUE(status.ok()) << kernels::IsaName(isa) << ": " << status.message();
    }
  }
}

TEST(PairLayers, ALoadIsTheBytesOfItsPages) {
  ThreadPool pool(1);
  const auto layers = PairLayers::Make(kShape, Parse("pnmix:3/1@50%"), kernels::BestIsa(), 1024, 1'000'000, &pool);
  ASSERT_TRUE(layers.ok());
  // 64 channels: 128 · 64 · 2 bits of keys, as many of values, 256 bytes of key and 512 of value parameters.
  EXPECT_EQ(layers->LoadOf(1024).bytes, 8U * 2 * (2048 + 256 + 2048 + 512));
  EXPECT_EQ(layers->LoadOf(512).tokens, 512U);
}

TEST(PairLayers, WhatTheShapeCannotHaveIsNamed) {
  ThreadPool pool(1);
  EXPECT_EQ(PairLayers::Make({1, 1, 100}, Parse("pairs:2"), kernels::Isa::kScalar, 128, 0, &pool).status().code(),
            StatusCode::kModelUnsupported);
  EXPECT_EQ(PairLayers::Make({1, 1, 64}, Parse("pairs:2,vg=128"), kernels::Isa::kScalar, 128, 0, &pool).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PackWork, PagesAreTheReferences) {
  ThreadPool pool(2);
  const std::vector<codec::PairPrecision> precisions = {Parse("pnmix:3/1@50%"), Parse("pairs:2,v=2,g=32")};
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    const Result<PackWork> work = PackWork::Make(precisions, 64, 1 << 20, isa, &pool);
    ASSERT_TRUE(work.ok()) << work.status().message();
    EXPECT_GT(work->packed_bytes(1), work->packed_bytes(0));  // four times the key parameters
    EXPECT_LT(work->packed_bytes(1) * 5, work->payload_bytes());
  }
}

TEST(PrecisionList, OptionsBelongToTheWordBeforeThem) {
  EXPECT_EQ(SplitPrecisionList("fp16,pnmix:3/1@50%,v=2,rule=qk,int8,eq=off,spectrum:b=0.5"),
            (std::vector<std::string>{"fp16", "pnmix:3/1@50%,v=2,rule=qk", "int8,eq=off", "spectrum:b=0.5"}));
  EXPECT_EQ(ParsePlainPrecisionList("int8,pnmix:3/1@50%").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::cli
