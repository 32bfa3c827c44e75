#include "kvant/kernels/cuda/decode_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "kernels/cuda/head_dim.h"
#include "kvant/base/checked.h"
#include "kvant/kernels/cuda/device_layout.h"

namespace kvant::kernels::cuda {
namespace {

// A piece of an item as it is handed out: tiles of one segment.
struct Piece {
  uint32_t segment;
  uint32_t first_tile;
  uint32_t num_tiles;
};

uint32_t EndTile(const DecodeSegment& segment) {
  return static_cast<uint32_t>(CeilDiv(segment.num_tokens, kTileTokens));
}
uint32_t BeginTile(const DecodeSegment& segment) {
  const uint32_t tile = segment.first_visible / kTileTokens;
  return segment.format == DecodeFormat::kPair ? tile / kPairSplitTiles * kPairSplitTiles : tile;
}

Status CheckShape(const DecodeShape& shape) {
  KVANT_RETURN_IF_ERROR(ForHeadDim(shape.head_dim, [](auto) { return OkStatus(); }));
  if (shape.q_heads_per_kv_head < 1 || shape.q_heads_per_kv_head > 16) {
    return {StatusCode::kModelUnsupported,
            std::to_string(shape.q_heads_per_kv_head) + " query heads a KV head: 1 to 16 are supported"};
  }
  return OkStatus();
}

Status CheckSegment(const DecodeSegment& segment) {
  if (segment.format == DecodeFormat::kPair && segment.num_tokens % kPairPageTokens != 0) {
    return {StatusCode::kInvalidArgument,
            "a pair segment of " + std::to_string(segment.num_tokens) + " tokens is not whole pages of 128"};
  }
  return OkStatus();
}

class Planner {
 public:
  Planner(DecodePlan* plan, std::span<const DecodeSegment> segments, std::span<const uint32_t> sequence_segments,
          const DecodeCosts& costs)
      : plan_(*plan), segments_(segments), sequence_segments_(sequence_segments), costs_(costs) {}

  void Run() {
    Measure();
    plan_.runs.resize(plan_.grid.num_warps());
    warp_last_.assign(plan_.grid.num_warps(), DecodeRun::kNone);
    for (uint32_t sequence = 0; sequence + 1 < sequence_segments_.size(); ++sequence) {
      for (uint32_t head = 0; head < plan_.shape.num_kv_heads; ++head) {
        for (uint32_t group = 0; group < groups_; group += twins_) {
          PlaceItems(sequence, head, group);
        }
      }
    }
    CloseGroups();
  }

 private:
  uint64_t TileCost(const DecodeSegment& segment) const {
    return costs_.tile_bytes[static_cast<size_t>(segment.format)] + costs_.tile_overhead;
  }
  uint64_t StartCost(const DecodeSegment& segment) const {
    return costs_.start_bytes[static_cast<size_t>(segment.format)];
  }

  // How much there is, and how it is shared: a few warps of every block rather than all warps of a few blocks. Two
  // groups of query heads go through the same tiles at the same time on neighbouring warps, so that the second one
  // finds them in the L2: a worker is then two warps. Every worker begins once; what is counted are the beginnings
  // between, so the first segment's is left out.
  void Measure() {
    uint64_t sequences = 0;
    uint64_t first_start = 0;
    for (const DecodeSegment& segment : segments_) {
      if (BeginTile(segment) >= EndTile(segment)) continue;
      if (sequences == 0) first_start = StartCost(segment);
      sequences += StartCost(segment) + TileCost(segment) * (EndTile(segment) - BeginTile(segment));
    }
    groups_ = static_cast<uint32_t>(CeilDiv(plan_.shape.q_heads_per_kv_head, 8U));
    twins_ = plan_.grid.warps_per_block % groups_ == 0 ? groups_ : 1;
    total_ = sequences * plan_.shape.num_kv_heads * (groups_ / twins_) - first_start;
    const uint64_t least = std::max<uint64_t>(costs_.least_bytes, 1);
    const uint64_t wanted = std::clamp<uint64_t>(total_ / least, 1, plan_.grid.num_warps() / twins_);
    warps_used_per_block_ = static_cast<uint32_t>(CeilDiv(wanted, uint64_t{plan_.grid.num_blocks}));
    workers_ = warps_used_per_block_ * plan_.grid.num_blocks;
    share_ = total_ / workers_;
  }

  uint32_t WarpOf(uint32_t worker, uint32_t twin) const {
    return worker / warps_used_per_block_ * plan_.grid.warps_per_block + worker % warps_used_per_block_ * twins_ + twin;
  }
  // Cost at which worker w begins.
  uint64_t Border(uint32_t worker) const { return total_ / workers_ * worker + total_ % workers_ * worker / workers_; }

  uint32_t UnitOf(const DecodeSegment& segment) const {
    const uint32_t unit = std::max(1U, costs_.unit_tiles[static_cast<size_t>(segment.format)]);
    const uint32_t smallest = segment.format == DecodeFormat::kPair ? kPairSplitTiles : 1;
    // Pieces of a load even out shares of a few loads; a share below one load is better left alone.
    const bool fine = share_ < costs_.fine_below && share_ >= unit * TileCost(segment);
    return fine ? std::min(unit, smallest) : unit;
  }

  // The item of `first_group` and its twins.
  void PlaceItems(uint32_t sequence, uint32_t head, uint32_t first_group) {
    const uint32_t per_group = static_cast<uint32_t>(CeilDiv(plan_.shape.q_heads_per_kv_head, groups_));
    const auto index = static_cast<uint32_t>(plan_.items.size());
    for (uint32_t twin = 0; twin < twins_; ++twin) {
      const uint32_t first = (first_group + twin) * per_group;
      DecodeItem item;
      item.sequence = sequence;
      item.first_q_head = static_cast<uint16_t>(head * plan_.shape.q_heads_per_kv_head + first);
      item.num_q_heads = static_cast<uint16_t>(std::min(per_group, plan_.shape.q_heads_per_kv_head - first));
      plan_.items.push_back(item);
      item_last_run_[twin].clear();
    }
    for (uint32_t s = sequence_segments_[sequence]; s < sequence_segments_[sequence + 1]; ++s) {
      PlaceSegment(s, index, head);
    }
    for (uint32_t twin = 0; twin < twins_; ++twin) {
      EndItem(index + twin, item_last_run_[twin]);
    }
  }

  void PlaceSegment(uint32_t s, uint32_t item, uint32_t head) {
    const DecodeSegment& segment = segments_[s];
    const uint32_t unit = UnitOf(segment);
    uint32_t tile = BeginTile(segment);
    const uint32_t end = EndTile(segment);
    if (tile < end && cost_ != 0) cost_ += StartCost(segment);
    while (tile < end) {
      // Everything up to this worker's border, rounded to the nearest unit; at least one unit so that it ends.
      while (worker_ + 1 < workers_ && cost_ + TileCost(segment) * unit / 2 > Border(worker_ + 1)) {
        ++worker_;
      }
      uint32_t take = end - tile;
      if (worker_ + 1 < workers_) {
        const uint64_t room = Border(worker_ + 1) - std::min(cost_, Border(worker_ + 1));
        const uint64_t units =
            std::max<uint64_t>(1, (room + TileCost(segment) * unit / 2) / (TileCost(segment) * unit));
        const uint32_t border = static_cast<uint32_t>((tile / unit + units) * unit);
        take = std::min(take, border - tile);
      }
      for (uint32_t twin = 0; twin < twins_; ++twin) {
        AddRun({s, tile, take}, item + twin, head, WarpOf(worker_, twin), item_last_run_[twin]);
      }
      tile += take;
      cost_ += TileCost(segment) * take;
    }
  }

  struct Part {
    uint32_t warp;
    uint32_t run;
  };

  void AddRun(const Piece& piece, uint32_t item, uint32_t head, uint32_t warp, std::vector<Part>& parts) {
    const DecodeSegment& segment = segments_[piece.segment];
    DecodeRun run;
    run.sequence = plan_.items[item].sequence;
    run.kv_head = static_cast<uint16_t>(head);
    run.first_q_head = plan_.items[item].first_q_head;
    run.num_q_heads = static_cast<uint8_t>(plan_.items[item].num_q_heads);
    run.format = segment.format;
    run.first_tile = piece.first_tile;
    run.num_tiles = piece.num_tiles;
    run.num_tokens = segment.num_tokens;
    run.first_visible = segment.first_visible;
    run.page_table = segment.page_table;
    run.map = segment.map;
    run.item = item;
    run.begins_item = parts.empty() || parts.back().warp != warp ? 1 : 0;
    uint32_t index = warp;
    if (warp_last_[warp] != DecodeRun::kNone) {
      index = static_cast<uint32_t>(plan_.runs.size());
      plan_.runs[warp_last_[warp]].next = index;
      plan_.runs.push_back(run);
    } else {
      plan_.runs[warp] = run;
    }
    warp_last_[warp] = index;
    if (run.begins_item != 0) {
      parts.push_back({warp, index});
    } else {
      parts.back().run = index;
    }
  }

  // Who finishes the item: the only warp, or the warps that end on it through their block, or all through slots.
  void EndItem(uint32_t item, const std::vector<Part>& parts) {
    if (parts.size() == 1) {
      plan_.runs[parts[0].run].end = RunEnd::kFinal;
      return;
    }
    for (const Part& part : parts) {
      parts_.push_back({part.warp, part.run, item});
    }
  }

  // A part is shared through its block if the warp does nothing after it; only the last pass knows that.
  void CloseGroups() {
    plan_.blocks.assign(plan_.grid.num_blocks, {});
    for (size_t i = 0; i < parts_.size();) {
      size_t j = i + 1;
      const uint32_t block = parts_[i].warp / plan_.grid.warps_per_block;
      if (IsLast(parts_[i])) {
        while (j < parts_.size() && parts_[j].item == parts_[i].item && IsLast(parts_[j]) &&
               parts_[j].warp / plan_.grid.warps_per_block == block) {
          ++j;
        }
      }
      ClosePart(i, j, block);
      i = j;
    }
    // An item's twin begins again at its first block.
    std::stable_sort(plan_.groups.begin(), plan_.groups.end(),
                     [](const DecodeGroup& a, const DecodeGroup& b) { return a.block < b.block; });
    uint32_t first_group = 0;
    for (DecodeBlock& block : plan_.blocks) {
      block.groups = first_group;
      first_group += block.num_groups;
    }
    ListBlockItems();
    for (DecodeItem& item : plan_.items) {
      item.first_slot = plan_.num_slots;
      plan_.num_slots += item.num_slots;
    }
    for (DecodeRun& run : plan_.runs) {
      if (run.end == RunEnd::kPartial) {
        run.slot += plan_.items[run.item].first_slot;
      }
    }
    for (DecodeGroup& group : plan_.groups) {
      DecodeItem& item = plan_.items[group.item];
      if (item.num_slots == 1) {
        group.slot = DecodeRun::kNone;
      } else {
        group.slot += item.first_slot;
      }
    }
  }

  void ListBlockItems() {
    for (uint32_t warp = 0; warp < plan_.grid.num_warps(); ++warp) {
      DecodeBlock& block = plan_.blocks[warp / plan_.grid.warps_per_block];
      for (uint32_t i = warp; i != DecodeRun::kNone && plan_.runs[i].num_tiles > 0; i = plan_.runs[i].next) {
        const DecodeRun& run = plan_.runs[i];
        for (uint32_t k = 0; k < 2 && block.item[k] != run.item; ++k) {
          if (block.item[k] == DecodeRun::kNone) {
            block.item[k] = run.item;
            block.q_row[k] = run.sequence * plan_.shape.num_q_heads() + run.first_q_head;
            block.num_q_heads[k] = run.num_q_heads;
            break;
          }
        }
      }
    }
  }

  void ClosePart(size_t begin, size_t end, uint32_t block) {
    const uint32_t item = parts_[begin].item;
    const uint32_t slot = plan_.items[item].num_slots++;
    if (end - begin == 1) {
      plan_.runs[parts_[begin].run].end = RunEnd::kPartial;
      plan_.runs[parts_[begin].run].slot = slot;
    }
    uint32_t warps = 0;
    for (size_t i = begin; i < end && end - begin > 1; ++i) {
      plan_.runs[parts_[i].run].end = RunEnd::kShared;
      warps |= 1U << parts_[i].warp % plan_.grid.warps_per_block;
    }
    plan_.groups.push_back({item, slot, warps, block});
    ++plan_.blocks[block].num_groups;
  }

  struct ItemPart {
    uint32_t warp;
    uint32_t run;
    uint32_t item;
  };
  bool IsLast(const ItemPart& part) const { return warp_last_[part.warp] == part.run; }

  DecodePlan& plan_;
  std::span<const DecodeSegment> segments_;
  std::span<const uint32_t> sequence_segments_;
  const DecodeCosts& costs_;
  uint64_t total_ = 0;
  uint64_t cost_ = 0;
  uint32_t workers_ = 0;
  uint32_t warps_used_per_block_ = 0;
  uint32_t worker_ = 0;
  uint64_t share_ = 0;  // of a warp
  std::vector<uint32_t> warp_last_;
  uint32_t groups_ = 1;                             // of query heads, 8 at most each
  uint32_t twins_ = 1;                              // groups that go side by side
  std::array<std::vector<Part>, 2> item_last_run_;  // the parts of the item being placed, and of its twin
  std::vector<ItemPart> parts_;                     // of all items with several parts, in order of warps
};

size_t Rounded(size_t bytes) { return RoundUp(bytes, size_t{16}); }

}  // namespace

Result<DecodePlan> PlanDecode(const DecodeShape& shape, std::span<const DecodeSegment> segments,
                              std::span<const uint32_t> sequence_segments, const DecodeCosts& costs,
                              const DecodeGrid& grid) {
  KVANT_RETURN_IF_ERROR(CheckShape(shape));
  for (size_t s = 0; s + 1 < sequence_segments.size(); ++s) {
    bool sees = false;
    for (uint32_t i = sequence_segments[s]; i < sequence_segments[s + 1]; ++i) {
      KVANT_RETURN_IF_ERROR(CheckSegment(segments[i]));
      sees = sees || segments[i].first_visible < segments[i].num_tokens;
    }
    if (!sees) {
      return Status{StatusCode::kInvalidArgument, "sequence " + std::to_string(s) + " sees no token"};
    }
  }
  DecodePlan plan;
  plan.shape = shape;
  plan.grid = grid;
  Planner(&plan, segments, sequence_segments, costs).Run();
  return plan;
}

std::vector<DecodeEnd> DecodePlan::Ends() const {
  std::vector<DecodeEnd> ends(2 * size_t{grid.num_warps()});
  for (uint32_t b = 0; b < grid.num_blocks; ++b) {
    for (uint32_t i = 0; i < blocks[b].num_groups; ++i) {
      const DecodeGroup& group = groups[blocks[b].groups + i];
      ends[2 * size_t{b} * grid.warps_per_block + i] = {group, items[group.item]};
    }
  }
  return ends;
}

DecodePlan::Offsets DecodePlan::DeviceOffsets() const {
  Offsets at;
  at.blocks = at.runs + Rounded(runs.size() * sizeof(DecodeRun));
  at.ends = at.blocks + Rounded(blocks.size() * sizeof(DecodeBlock));
  at.end = at.ends + 2 * size_t{grid.num_warps()} * sizeof(DecodeEnd);
  return at;
}

void DecodePlan::CopyTo(std::span<std::byte> bytes) const {
  const Offsets at = DeviceOffsets();
  const auto copy = [&](size_t offset, const auto& vector) {
    if (!vector.empty()) {
      std::memcpy(bytes.data() + offset, vector.data(), vector.size() * sizeof(vector[0]));
    }
  };
  copy(at.runs, runs);
  copy(at.blocks, blocks);
  copy(at.ends, Ends());
}

}  // namespace kvant::kernels::cuda
