#include "kvant/kernels/cuda/decode_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "kvant/base/checked.h"

namespace kvant::kernels::cuda {
namespace {

DecodeCosts Costs() {
  DecodeCosts costs;
  costs.tile_bytes = {8192, 4160, 2112, 2176, 1152, 8192};
  costs.unit_tiles = {1, 2, 4, 4, 8, 1};
  costs.tile_overhead = 256;
  costs.start_bytes = {3000, 4000, 5000, 6000, 7000, 8000};
  costs.fine_below = 64 * 1024;
  costs.least_bytes = 2048;
  return costs;
}

struct Batch {
  std::vector<DecodeSegment> segments;
  std::vector<uint32_t> borders{0};

  void Add(std::vector<DecodeSegment> sequence) {
    segments.insert(segments.end(), sequence.begin(), sequence.end());
    borders.push_back(static_cast<uint32_t>(segments.size()));
  }
};

DecodePlan Plan(const DecodeShape& shape, const Batch& batch, const DecodeGrid& grid,
                const DecodeCosts& costs = Costs()) {
  Result<DecodePlan> plan = PlanDecode(shape, batch.segments, batch.borders, costs, grid);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(plan).value();
}

// What the kernel does with a plan, in the order in which it does it; every rule the kernel relies on is checked.
void Replay(const DecodePlan& plan, const Batch& batch) {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint8_t>> seen;  // (item, page table) -> times a tile was met
  std::map<uint32_t, std::set<uint32_t>> slots;                        // item -> slots written
  std::map<uint32_t, std::set<uint32_t>> told;                         // … that a block arrives for at its end
  std::map<uint32_t, int> finals;
  std::map<uint32_t, uint32_t> shared_item;  // warp -> item left in shared memory
  for (uint32_t warp = 0; warp < plan.grid.num_warps(); ++warp) {
    uint32_t item = DecodeRun::kNone;
    for (uint32_t i = warp; i != DecodeRun::kNone && plan.runs[i].num_tiles > 0; i = plan.runs[i].next) {
      const DecodeRun& run = plan.runs[i];
      ASSERT_FALSE(shared_item.contains(warp)) << "a shared part must be the warp's last";
      ASSERT_EQ(run.begins_item != 0, item == DecodeRun::kNone);
      item = run.item;
      std::vector<uint8_t>& tiles = seen[{run.item, run.page_table}];
      tiles.resize(CeilDiv(run.num_tokens, 16U));
      for (uint32_t t = run.first_tile; t < run.first_tile + run.num_tiles; ++t) {
        ASSERT_LT(t, tiles.size());
        ++tiles[t];
      }
      if (run.end == RunEnd::kContinue) continue;
      if (run.end == RunEnd::kFinal) ++finals[run.item];
      if (run.end == RunEnd::kShared) shared_item[warp] = run.item;
      if (run.end == RunEnd::kPartial) {
        ASSERT_TRUE(slots[run.item].insert(run.slot).second);
      }
      item = DecodeRun::kNone;
    }
    ASSERT_EQ(item, DecodeRun::kNone) << "warp " << warp << " ends inside an item";
  }
  for (uint32_t block = 0; block < plan.grid.num_blocks; ++block) {
    const uint32_t end = plan.blocks[block].groups + plan.blocks[block].num_groups;
    for (uint32_t g = plan.blocks[block].groups; g < end; ++g) {
      const DecodeGroup& group = plan.groups[g];
      ASSERT_EQ(group.block, block);
      if (group.warps == 0) {  // a part that its warp has put into the slot
        ASSERT_TRUE(slots[group.item].contains(group.slot));
        ASSERT_TRUE(told[group.item].insert(group.slot).second);
        continue;
      }
      for (uint32_t w = 0; w < plan.grid.warps_per_block; ++w) {
        if ((group.warps >> w & 1U) == 0) continue;
        const uint32_t warp = block * plan.grid.warps_per_block + w;
        ASSERT_TRUE(shared_item.contains(warp));
        ASSERT_EQ(shared_item[warp], group.item);
        shared_item.erase(warp);
      }
      if (group.slot == DecodeRun::kNone) {
        ++finals[group.item];
      } else {
        ASSERT_TRUE(slots[group.item].insert(group.slot).second);
        ASSERT_TRUE(told[group.item].insert(group.slot).second);
      }
    }
    ASSERT_LE(plan.blocks[block].num_groups, 2 * plan.grid.warps_per_block);
  }
  EXPECT_EQ(told, slots);
  EXPECT_TRUE(shared_item.empty());
  for (uint32_t i = 0; i < plan.items.size(); ++i) {
    const DecodeItem& item = plan.items[i];
    if (finals.contains(i)) {
      EXPECT_EQ(finals[i], 1);
      EXPECT_FALSE(slots.contains(i));
    } else {
      ASSERT_EQ(slots[i].size(), item.num_slots);
      EXPECT_EQ(*slots[i].begin(), item.first_slot);
      EXPECT_EQ(*slots[i].rbegin(), item.first_slot + item.num_slots - 1);
      EXPECT_GT(item.num_slots, 1U);
    }
    for (uint32_t s = batch.borders[item.sequence]; s < batch.borders[item.sequence + 1]; ++s) {
      const DecodeSegment& segment = batch.segments[s];
      const std::vector<uint8_t>& tiles = seen[{i, segment.page_table}];
      for (uint32_t t = 0; t < CeilDiv(segment.num_tokens, 16U); ++t) {
        const uint32_t block = segment.format == DecodeFormat::kPair ? kPairSplitTiles : 1;
        const bool visible = t >= segment.first_visible / 16 / block * block;
        ASSERT_EQ(t < tiles.size() ? tiles[t] : 0, visible ? 1 : 0) << "item " << i << " tile " << t;
      }
    }
  }
}

TEST(DecodePlan, EveryVisibleTileOnceWhateverTheBatch) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Batch batch;
    uint32_t pages = 0;
    const auto sequences = static_cast<uint32_t>(1 + random() % (round % 5 == 0 ? 100 : 4));
    const uint32_t longest = round % 3 == 0 ? 20000 : 700;
    for (uint32_t s = 0; s < sequences; ++s) {
      std::vector<DecodeSegment> segments;
      for (uint32_t i = 0; i < 1 + random() % 3; ++i) {
        const auto format = static_cast<DecodeFormat>(random() % kNumDecodeFormats);
        auto tokens = static_cast<uint32_t>(1 + random() % longest);
        if (format == DecodeFormat::kPair) tokens = (tokens + 127) / 128 * 128;
        segments.push_back(
            {format, tokens, random() % 4 == 0 ? static_cast<uint32_t>(random() % tokens) : 0, pages, 0});
        pages += (tokens + 15) / 16;
      }
      batch.Add(std::move(segments));
    }
    const DecodeShape shape{128, 1 + static_cast<uint32_t>(random() % 8), 1 + static_cast<uint32_t>(random() % 16)};
    const DecodeGrid grid{round % 2 == 0 ? 132U : 7U, round % 2 == 0 ? 12U : 6U};
    DecodeCosts costs = Costs();
    if (round % 4 < 2) costs.start_bytes.fill(48 * 1024);  // more than many a share
    const DecodePlan plan = Plan(shape, batch, grid, costs);
    Replay(plan, batch);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST(DecodePlan, SharesAreEven) {
  Batch batch;
  for (uint32_t s = 0; s < 32; ++s) batch.Add({{DecodeFormat::kPair, 32768, 0, s * 256, 0}});
  const DecodePlan plan = Plan({128, 8, 8}, batch, {132, 12});
  uint64_t most = 0;
  uint64_t all = 0;
  for (uint32_t warp = 0; warp < plan.grid.num_warps(); ++warp) {
    uint64_t tiles = 0;
    for (uint32_t i = warp; i != DecodeRun::kNone; i = plan.runs[i].next) tiles += plan.runs[i].num_tiles;
    most = std::max(most, tiles);
    all += tiles;
  }
  EXPECT_EQ(all, uint64_t{32} * 8 * 2048);
  EXPECT_LE(most * plan.grid.num_warps(), all + all / 40);
}

// What a warp has to do by the planner's costs, beginnings included.
std::vector<uint64_t> WarpCosts(const DecodePlan& plan, const DecodeCosts& costs) {
  std::vector<uint64_t> all(plan.grid.num_warps());
  for (uint32_t warp = 0; warp < plan.grid.num_warps(); ++warp) {
    for (uint32_t i = warp; i != DecodeRun::kNone && plan.runs[i].num_tiles != 0; i = plan.runs[i].next) {
      const auto format = static_cast<size_t>(plan.runs[i].format);
      all[warp] += costs.start_bytes[format];
      all[warp] += uint64_t{plan.runs[i].num_tiles} * (costs.tile_bytes[format] + costs.tile_overhead);
    }
  }
  return all;
}

double MostOverMean(const std::vector<uint64_t>& costs) {
  const auto most = static_cast<double>(*std::max_element(costs.begin(), costs.end()));
  return most * static_cast<double>(costs.size()) /
         static_cast<double>(std::accumulate(costs.begin(), costs.end(), uint64_t{0}));
}

// Lengths 1 : 64. The shortest sequences come twenty to a warp, which pays for their beginnings with fewer tiles; a
// planner that counts tiles alone gives it as many as any other warp.
TEST(DecodePlan, BeginningsCount) {
  for (const DecodeFormat format : {DecodeFormat::kFp16, DecodeFormat::kInt8, DecodeFormat::kInt4}) {
    Batch batch;
    uint32_t pages = 0;
    for (uint32_t s = 0; s < 128; ++s) {
      const uint32_t tokens = 252 * (1 + 63 * s / 127) + s % 16;
      batch.Add({{format, tokens, 0, pages, 0}});
      pages += tokens / 16 + 1;
    }
    const DecodeCosts costs = Costs();
    DecodeCosts tiles_alone = costs;
    tiles_alone.start_bytes = {};
    const DecodePlan plan = Plan({128, 8, 8}, batch, {132, 12}, costs);
    Replay(plan, batch);
    const std::vector<uint64_t> warps = WarpCosts(plan, costs);
    const auto f = static_cast<size_t>(format);
    const auto mean = static_cast<double>(std::accumulate(warps.begin(), warps.end(), uint64_t{0})) / 1584;
    const double begin = costs.start_bytes[f] / mean;
    const double unit = costs.unit_tiles[f] * (costs.tile_bytes[f] + costs.tile_overhead) / mean;
    EXPECT_LE(MostOverMean(warps), 1.0 + unit + begin);
    EXPECT_GE(MostOverMean(WarpCosts(Plan({128, 8, 8}, batch, {132, 12}, tiles_alone), costs)), 1.0 + 8 * begin);
  }
}

// Beginnings that all warps have alike move nothing: the warps of an item share its tiles as evenly as before.
TEST(DecodePlan, BeginningsLeaveEvenBatchesEven) {
  Batch batch;
  for (uint32_t s = 0; s < 8; ++s) batch.Add({{DecodeFormat::kInt4, 32768, 0, s * 2048, 0}});
  const DecodeCosts costs = Costs();
  const std::vector<uint64_t> warps = WarpCosts(Plan({128, 8, 8}, batch, {132, 12}, costs), costs);
  EXPECT_LE(MostOverMean(warps), 1.08);
  EXPECT_TRUE(std::none_of(warps.begin(), warps.end(), [](uint64_t cost) { return cost == 0; }));
}

// More than eight query heads a KV head: both groups meet the same tiles in the same order on neighbouring warps.
TEST(DecodePlan, GroupsOfQueryHeadsGoSideBySide) {
  Batch batch;
  batch.Add({{DecodeFormat::kFp16, 77, 0, 0, 0}, {DecodeFormat::kPair, 5120, 0, 10, 0}});
  batch.Add({{DecodeFormat::kPair, 1280, 0, 50, 0}});
  const DecodePlan plan = Plan({128, 3, 14}, batch, {5, 12});
  Replay(plan, batch);
  for (uint32_t warp = 0; warp < plan.grid.num_warps(); warp += 2) {
    uint32_t a = warp;
    uint32_t b = warp + 1;
    ASSERT_EQ(plan.runs[a].num_tiles, plan.runs[b].num_tiles);
    for (; a != DecodeRun::kNone && plan.runs[a].num_tiles != 0; a = plan.runs[a].next, b = plan.runs[b].next) {
      const DecodeRun& first = plan.runs[a];
      const DecodeRun& second = plan.runs[b];
      EXPECT_EQ(first.first_tile, second.first_tile);
      EXPECT_EQ(first.num_tiles, second.num_tiles);
      EXPECT_EQ(first.page_table, second.page_table);
      EXPECT_EQ(first.kv_head, second.kv_head);
      EXPECT_EQ(first.first_q_head + 7, second.first_q_head);
      EXPECT_EQ(first.num_q_heads, 7);
      EXPECT_EQ(second.num_q_heads, 7);
    }
    EXPECT_EQ(a, b);
  }
}

TEST(DecodePlan, RefusesWhatNoKernelHas) {
  Batch batch;
  batch.Add({{DecodeFormat::kFp16, 10, 0, 0, 0}});
  EXPECT_EQ(PlanDecode({96, 8, 8}, batch.segments, batch.borders, Costs(), {132, 12}).status().code(),
            StatusCode::kModelUnsupported);
  EXPECT_EQ(PlanDecode({128, 8, 17}, batch.segments, batch.borders, Costs(), {132, 12}).status().code(),
            StatusCode::kModelUnsupported);
  batch.Add({{DecodeFormat::kPair, 130, 0, 1, 0}});
  EXPECT_EQ(PlanDecode({128, 8, 8}, batch.segments, batch.borders, Costs(), {132, 12}).status().code(),
            StatusCode::kInvalidArgument);
  Batch blind;
  blind.Add({{DecodeFormat::kFp16, 10, 10, 0, 0}});
  EXPECT_EQ(PlanDecode({128, 8, 8}, blind.segments, blind.borders, Costs(), {132, 12}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::kernels::cuda
