#include "cli/inspect/describe_layer.h"

#include <algorithm>
#include <vector>

namespace kvant::cli {
namespace {

using codec::LayerBlockLayout;
using codec::Tier;

constexpr const char* kTierNames[] = {"fp16", "int8", "int4", "dropped"};

Json CountsJson(const codec::TierCounts& counts) {
  Json json;
  for (const Tier tier : codec::kTiers) {
    json[kTierNames[static_cast<size_t>(tier)]] = counts.of(tier);
  }
  return json;
}

// Counts of each KV head's own tier ids, and how they differ from the first one's.
struct HeadTiers {
  Json counts = Json::array();
  Json differ_from_first = Json::array();
  uint64_t same_in_all = 0;
  bool differ_from_announced = false;
};

HeadTiers CompareHeads(const wire::LayerView& view) {
  HeadTiers found;
  std::vector<Tier> first(view.layout.split.num_encoded);
  std::vector<Tier> ids(first.size());
  std::vector<bool> same(first.size(), true);
  for (uint32_t kv_head = 0; kv_head < view.layout.shape.num_kv_heads; ++kv_head) {
    static_cast<void>(codec::UnpackTierIds(codec::HeadOf(view.layout, view.block, kv_head).tier_ids, ids));
    if (kv_head == 0) {
      first = ids;
    }
    uint64_t differ = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != first[i]) {
        ++differ;
        same[i] = false;
      }
    }
    const codec::TierCounts counts = codec::CountTiers(ids);
    found.differ_from_announced |= counts != view.layout.counts();
    found.counts.push_back(CountsJson(counts));
    found.differ_from_first.push_back(differ);
  }
  found.same_in_all = static_cast<uint64_t>(std::count(same.begin(), same.end(), true));
  return found;
}

void AddSection(const std::string& name, uint64_t bytes, Json* sections) {
  if (bytes > 0) {
    (*sections)[name] = sections->value(name, uint64_t{0}) + bytes;
  }
}

}  // namespace

std::string CodecWord(const LayerBlockLayout& layout) {
  return layout.pairs         ? "pair pages"
         : layout.progressive ? "progressive"
         : layout.tiers       ? "spectrum"
                              : std::string(codec::TokenCodecName(layout.codec));
}

Json LayerSections(const wire::LayerView& view) {
  Json sections = Json::object();
  AddSection("header", wire::kHeaderBytes, &sections);
  AddSection("prefix", wire::kBlockPrefixBytes, &sections);
  AddSection("tier_counts", view.layout.counts_bytes(), &sections);
  AddSection("width_maps", view.layout.pair_bytes(), &sections);
  AddSection("key_map", view.layout.map_bytes(), &sections);
  for (uint32_t kv_head = 0; kv_head < view.layout.shape.num_kv_heads; ++kv_head) {
    const auto head = codec::HeadOf(view.layout, view.block, kv_head);
    AddSection("sinks", head.sink_keys.size() + head.sink_values.size(), &sections);
    AddSection("tier_ids", head.tier_ids.size(), &sections);
    AddSection("pages", head.pages.size(), &sections);
    for (const Tier tier : codec::kStoredTiers) {
      const std::string name = kTierNames[static_cast<size_t>(tier)];
      const auto& rows = head.tiers[static_cast<size_t>(tier)];
      AddSection(name + "_codes", rows.key_codes.size() + rows.value_codes.size(), &sections);
      AddSection(name + "_scales", rows.key_scales.size() + rows.value_scales.size(), &sections);
      AddSection(name + "_zeros", rows.key_zeros.size() + rows.value_zeros.size(), &sections);
    }
    AddSection("tail", head.tail_keys.size() + head.tail_values.size(), &sections);
  }
  return sections;
}

Json DescribeLayer(const wire::LayerView& view) {
  const LayerBlockLayout& layout = view.layout;
  const codec::BitsPerElement bits = codec::BitsOf(layout);
  Json json = {{"codec", CodecWord(layout)},
               {"equalized", layout.equalized},
               {"layers", layout.shape.num_layers},
               {"kv_heads", layout.shape.num_kv_heads},
               {"head_dim", layout.shape.head_dim},
               {"tokens",
                {{"skipped", layout.split.num_skipped},
                 {"sinks", layout.split.num_sinks},
                 {"encoded", layout.split.num_encoded},
                 {"tail", layout.split.num_tail}}},
               {"tiers", CountsJson(layout.counts())}};
  if (layout.pairs) {
    json["pages"] = {{"tokens", layout.pairs->format.page_tokens},
                     {"key_bits", static_cast<double>(layout.pairs->bits_per_key) / layout.shape.head_dim},
                     {"value_bits", layout.pairs->format.value_bits},
                     {"value_group", layout.pairs->format.value_group},
                     {"values_turned", layout.pairs->rotated_values}};
  }
  if (layout.int4_pages) {
    json["pages"] = {{"tokens", codec::kInt4PageTokens},
                     {"of_a_head", layout.int4_pages->count},
                     {"rows_before", layout.int4_pages->rows_before}};
  }
  if (layout.tier_id_bytes() > 0) {
    const HeadTiers heads = CompareHeads(view);
    if (heads.differ_from_announced) {
      json["tiers_by_head"] = heads.counts;
    }
    json["tokens_unlike_first_head"] = heads.differ_from_first;
    json["tokens_alike_in_all_heads"] = heads.same_in_all;
  }
  json["bits"] = {{"payload", bits.payload}, {"effective", bits.effective}};
  json["sections"] = LayerSections(view);
  return json;
}

}  // namespace kvant::cli
