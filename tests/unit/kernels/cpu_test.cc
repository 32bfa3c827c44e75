#include "kvant/kernels/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvant::kernels {
namespace {

TEST(CpuTest, EveryAvailableIsaIsParsedFromItsName) {
  ASSERT_FALSE(AvailableIsas().empty());
  EXPECT_EQ(AvailableIsas().front(), Isa::kScalar);
  EXPECT_EQ(BestIsa(), AvailableIsas().back());
  for (const Isa isa : AvailableIsas()) {
    const Result<Isa> parsed = ParseIsa(IsaName(isa));
    ASSERT_TRUE(parsed.ok()) << IsaName(isa);
    EXPECT_EQ(parsed.value(), isa);
  }
}

TEST(CpuTest, AnUnknownWordIsNamedWithTheKnownOnes) {
  for (const char* word : {"", "avx", "AVX2", "avx512", "avx2 "}) {
    const Result<Isa> parsed = ParseIsa(word);
    ASSERT_FALSE(parsed.ok()) << word;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(std::string("'").append(word).append("'")), std::string::npos);
    EXPECT_NE(parsed.status().message().find("scalar, avx2, avx512-vnni"), std::string::npos);
  }
}

TEST(CpuTest, AnIsaThisCpuLacksIsRefused) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
    const bool available = std::ranges::count(AvailableIsas(), isa) > 0;
    const Result<Isa> parsed = ParseIsa(IsaName(isa));
    EXPECT_EQ(parsed.ok(), available);
    if (!available) {
      EXPECT_EQ(parsed.status().code(), StatusCode::kModelUnsupported);
    }
  }
}

TEST(CpuTest, TheFeatureListNamesWhatTheIsasNeed) {
  const std::string list = CpuFeatureList() + " ";
  const auto has = [&](const char* name) { return list.find(std::string(name).append(" ")) != std::string::npos; };
  if (std::ranges::count(AvailableIsas(), Isa::kAvx2) > 0) {
    EXPECT_TRUE(has("avx2") && has("fma") && has("f16c")) << list;
  }
  if (std::ranges::count(AvailableIsas(), Isa::kAvx512Vnni) > 0) {
    EXPECT_TRUE(has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq") && has("avx512vnni")) << list;
  }
}

}  // namespace
}  // namespace kvant::kernels
