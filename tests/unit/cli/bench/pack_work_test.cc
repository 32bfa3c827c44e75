#include "cli/bench/pack_work.h"

#include <gtest/gtest.h>

namespace kvant::cli {
namespace {

codec::PairPrecision Parse(const char* word) { return codec::ParsePairPrecision(word).value(); }

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

}  // namespace
}  // namespace kvant::cli
