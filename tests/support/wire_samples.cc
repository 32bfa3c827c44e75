#include "support/wire_samples.h"

#include <bit>
#include <cstdio>
#include <utility>

#include "kvant/wire/layer_frame.h"
#include "kvant/wire/maps_frame.h"
#include "kvant/wire/messages.h"
#include "kvant/wire/upgrade.h"
#include "support/block_reference.h"

namespace kvant::test {
namespace {

using codec::TokenCodec;

constexpr uint64_t kSession = 0x0123456789ABCDEF;
// The codec bytes of a spectrum, and of one in the progressive code.
constexpr uint32_t kTiers = 4;
constexpr uint32_t kProgressive = 5;
constexpr uint32_t kPairs = 6;
constexpr uint32_t kInt4Pages = 7;

class Lines {
 public:
  Lines& Add(const char* field, uint64_t value) { return Add(field, std::to_string(value)); }
  Lines& Add(const char* field, const std::string& value) {
    text_.append(field).append(" ").append(value).append("\n");
    return *this;
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

Lines Begin(const char* type, uint32_t layer = 0) {
  Lines lines;
  return lines.Add("version", 1).Add("type", type).Add("session", kSession).Add("layer", layer);
}

std::string HelloFields(const wire::Hello& hello) {
  return Begin("hello")
      .Add("protocol", hello.protocol)
      .Add("num_layers", hello.model.shape.num_layers)
      .Add("num_kv_heads", hello.model.shape.num_kv_heads)
      .Add("head_dim", hello.model.shape.head_dim)
      .Add("model_fingerprint", hello.model.model_fingerprint)
      .Add("tokenizer_fingerprint", hello.model.tokenizer_fingerprint)
      .Add("rope_layout", static_cast<uint32_t>(hello.model.rope_layout))
      .Add("rope_base_bits", std::bit_cast<uint32_t>(hello.model.rope_base))
      .Add("rope_digest", hello.model.rope_digest)
      .Add("num_prompt_tokens", hello.num_prompt_tokens)
      .Add("num_context_tokens", hello.num_context_tokens)
      .Add("codec", hello.precision.pairs              ? kPairs
                    : hello.precision.is_progressive() ? kProgressive
                    : hello.precision.has_int4_pages() ? kInt4Pages
                    : hello.precision.spectrum         ? kTiers
                                                       : static_cast<uint32_t>(hello.precision.codec))
      .Add("equalize", static_cast<uint32_t>(hello.precision.equalize))
      .Add("sinks", hello.precision.num_sinks)
      .Add("residual", hello.precision.residual)
      .Take();
}

WireSample HelloSample(const std::string& name, const char* precision) {
  wire::Hello hello;
  hello.model = {0x1122334455667788, 0x99AABBCCDDEEFF00, {30, 3, 64}, wire::RopeLayout::kAdjacent, 100000.0F, 77};
  hello.precision = codec::ParsePrecision(precision).value();
  hello.num_prompt_tokens = 1000;
  hello.num_context_tokens = 1256;
  return {name, wire::EncodeHello(kSession, hello).value(), HelloFields(hello), {}};
}

WireSample VerdictSample(const std::string& name, const char* type, const wire::Verdict& verdict) {
  Buffer frame = std::string(type) == "error" ? wire::EncodeError(kSession, verdict).value()
                                              : wire::EncodeHelloReply(kSession, verdict).value();
  const auto code = static_cast<uint64_t>(verdict.code);
  return {name, std::move(frame), Begin(type).Add("code", code).Add("text", verdict.text).Take(), {}};
}

WireSample FinishSample() {
  const wire::Finish finish{{1, 4093, 28, 0, 49151, 2147483647}, 198, 6, {42, 1}};
  std::string tokens;
  for (const int32_t token : finish.prompt_tokens) {
    tokens.append(tokens.empty() ? "" : " ").append(std::to_string(token));
  }
  return {"finish",
          wire::EncodeFinish(kSession, finish).value(),
          Begin("finish")
              .Add("seed", 42)
              .Add("num_draws", 1)
              .Add("first_token", 198)
              .Add("first_position", 6)
              .Add("prompt_tokens", tokens)
              .Take(),
          {}};
}

WireSample LayerSample(const std::string& name, uint32_t layer, const codec::LayerBlockLayout& layout, uint64_t seed) {
  wire::BlockFrame frame = wire::AllocateLayer(kSession, layer, layout).value();
  const codec::TierMap tiers = RandomTiers(layout.counts(), layout.shape.num_kv_heads, seed);
  EncodeBlockRef(layout, MakeRows(layout.shape, layout.split.total(), seed), frame.block(),
                 layout.tiers ? &tiers : nullptr);
  WireSample sample{name, std::move(frame).Seal(), "", {}};
  const auto block = std::as_const(sample.frame).bytes().subspan(wire::kBlockOffset);
  const DecodedLayer decoded = DecodeBlockRef(layout, block);
  sample.values = decoded.keys;
  sample.values.insert(sample.values.end(), decoded.values.begin(), decoded.values.end());
  Lines lines = Begin("layer", layer);
  lines
      .Add("codec", layout.progressive  ? kProgressive
                    : layout.int4_pages ? kInt4Pages
                    : layout.tiers      ? kTiers
                                        : static_cast<uint32_t>(layout.codec))
      .Add("equalized", static_cast<uint32_t>(layout.equalized))
      .Add("head_dim", layout.shape.head_dim)
      .Add("num_kv_heads", layout.shape.num_kv_heads)
      .Add("num_layers", layout.shape.num_layers)
      .Add("num_sinks", layout.split.num_sinks)
      .Add("num_encoded", layout.split.num_encoded)
      .Add("num_tail", layout.split.num_tail);
  if (layout.split.num_skipped > 0) {
    lines.Add("num_skipped", layout.split.num_skipped);
  }
  if (layout.tiers) {
    lines.Add("fp16", layout.tiers->fp16)
        .Add("int8", layout.tiers->int8)
        .Add("int4", layout.tiers->int4)
        .Add("dropped", layout.tiers->dropped);
  }
  if (layout.int4_pages) {
    lines.Add("int4_rows_before", layout.int4_pages->rows_before).Add("int4_pages", layout.int4_pages->count);
  }
  sample.fields = lines.Take();
  return sample;
}

// A map a KV head, of equal bits.
std::vector<codec::WidthMap> SomeMaps(const codec::CacheShape& shape, codec::PairLayout pairs) {
  std::vector<codec::WidthMap> maps;
  for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
    codec::WidthMap map{pairs, std::vector<uint8_t>(shape.head_dim / 2)};
    for (uint32_t pair = 0; pair < map.widths.size(); ++pair) {
      map.widths[pair] = static_cast<uint8_t>((pair * 3 + head) % 4 + 1);
    }
    maps.push_back(map);
  }
  return maps;
}

Lines& AddPairFormat(const codec::PairBlockFormat& block, Lines& lines) {
  const codec::PairFormat& format = block.format;
  return lines.Add("value_bits", format.value_bits)
      .Add("page_tokens", format.page_tokens)
      .Add("value_group", format.value_group)
      .Add("key_rule", static_cast<uint32_t>(format.key_rule))
      .Add("value_rule", static_cast<uint32_t>(format.value_rule))
      .Add("turned", static_cast<uint32_t>(block.rotated_values))
      .Add("pairs", static_cast<uint32_t>(block.pairs))
      .Add("key_bits", block.bits_per_key)
      .Add("one_bit", static_cast<uint32_t>(format.one_bit));
}

// Pages from the scalar codec, straight into the block.
WireSample PairSample(const std::string& name, uint32_t layer, const codec::CacheShape& shape,
                      const codec::PairFormat& format, codec::PairLayout pairs, const codec::TokenSplit& split) {
  const std::vector<codec::WidthMap> maps = SomeMaps(shape, pairs);
  codec::LayerBlockLayout layout{shape, TokenCodec::kInt8, false, split};
  layout.pairs = codec::PairBlockFormat{format, pairs, false, maps[0].BitsPerKey()};
  wire::BlockFrame frame = wire::AllocateLayer(kSession, layer, layout).value();
  const LayerRows rows = MakeRows(shape, split.total(), layer);
  std::vector<float> values = EncodePairBlockRef(layout, maps, rows, frame.block());
  WireSample sample{name, std::move(frame).Seal(), "", std::move(values)};
  Lines lines = Begin("layer", layer);
  lines.Add("codec", kPairs)
      .Add("equalized", 0)
      .Add("head_dim", shape.head_dim)
      .Add("num_kv_heads", shape.num_kv_heads)
      .Add("num_layers", shape.num_layers)
      .Add("num_sinks", split.num_sinks)
      .Add("num_encoded", split.num_encoded)
      .Add("num_tail", split.num_tail);
  sample.fields = AddPairFormat(*layout.pairs, lines).Take();
  return sample;
}

template <typename T>
std::string Numbers(std::span<const T> values) {
  std::string text;
  for (const T value : values) {
    text.append(text.empty() ? "" : " ").append(std::to_string(static_cast<uint32_t>(value)));
  }
  return text;
}

Lines MapsFields(const wire::MapsFrame& frame) {
  Lines lines = Begin("maps", frame.layer);
  lines.Add("num_layers", frame.shape.num_layers)
      .Add("num_kv_heads", frame.shape.num_kv_heads)
      .Add("head_dim", frame.shape.head_dim);
  return lines;
}

WireSample WidthsSample() {
  wire::MapsFrame frame{5, {30, 2, 32}, {}};
  frame.maps.widths = SomeMaps(frame.shape, codec::PairLayout::kHalfSplit);
  frame.maps.pairs = codec::PairBlockFormat{{32, 128, 4, 32, codec::PairRule::kMidRise, codec::PairRule::kMinMax},
                                            codec::PairLayout::kHalfSplit,
                                            false,
                                            frame.maps.widths[0].BitsPerKey()};
  std::vector<uint8_t> widths;
  for (const codec::WidthMap& map : frame.maps.widths) {
    widths.insert(widths.end(), map.widths.begin(), map.widths.end());
  }
  Lines lines = MapsFields(frame);
  AddPairFormat(*frame.maps.pairs, lines).Add("widths", Numbers(std::span<const uint8_t>(widths)));
  return {"maps_widths", wire::EncodeMaps(kSession, frame).value(), lines.Take(), {}};
}

WireSample EqualizationSample() {
  wire::MapsFrame frame{29, {30, 1, 36}, {}};
  codec::Equalization map{1, 36, {}, {}};
  std::vector<uint16_t> bits;
  for (uint32_t i = 0; i < 36; ++i) {
    map.mean.push_back(ToHalf(static_cast<float>(i) * 0.75F - 6.0F));
    map.scale.push_back(ToHalf(static_cast<float>(i) * 0.5F + 0.25F));
  }
  for (const std::vector<Half>* halves : {&map.mean, &map.scale}) {
    for (const Half half : *halves) {
      bits.push_back(half.bits);
    }
  }
  frame.maps.equalization = map;
  Lines lines = MapsFields(frame);
  lines.Add("half_bits", Numbers(std::span<const uint16_t>(bits)));
  return {"maps_equalization", wire::EncodeMaps(kSession, frame).value(), lines.Take(), {}};
}

std::string TierIds(std::span<const codec::Tier> ids) {
  std::string text;
  for (const codec::Tier id : ids) {
    text.append(text.empty() ? "" : " ").append(std::to_string(static_cast<int>(id)));
  }
  return text;
}

WireSample OfferSample() {
  const wire::UpgradeOffer offer{{{1, 2, 3, 4}, {0, 1000, 0, 0}}};
  return {"upgrade_offer",
          wire::EncodeUpgradeOffer(kSession, offer).value(),
          Begin("upgrade offer").Add("counts", "1 2 3 4 0 1000 0 0").Take(),
          {}};
}

// Tiers before and after: every head raises one token each way.
constexpr codec::Tier kF = codec::Tier::kFp16;
constexpr codec::Tier kI = codec::Tier::kInt8;
constexpr codec::Tier kN = codec::Tier::kInt4;
constexpr codec::Tier kD = codec::Tier::kDropped;
const codec::TierMap kBefore{{2, 3, 3, 1}, {kN, kI, kF, kN, kD, kI, kN, kI, kF, kF, kI, kN, kI, kD, kN, kN, kI, kF}};
const codec::TierMap kAfter{{4, 3, 1, 1}, {kI, kF, kF, kF, kD, kI, kN, kI, kF, kF, kI, kF, kF, kD, kN, kI, kI, kF}};
const codec::UpgradeLayout kUpgrade{{30, 2, 36}, 9, {1, 1, 1}};

Lines UpgradeFields(const char* type) {
  Lines lines = Begin(type, 9);
  lines.Add("head_dim", 36).Add("num_layers", 30).Add("num_kv_heads", 2).Add("num_tokens", 9);
  lines.Add("int4_to_int8", 1).Add("int4_to_fp16", 1).Add("int8_to_fp16", 1).Add("tier_ids", TierIds(kAfter.ids));
  return lines;
}

WireSample RequestSample() {
  return {"upgrade_request",
          wire::EncodeUpgradeRequest(kSession, {9, kUpgrade, kAfter.ids}).value(),
          UpgradeFields("upgrade request").Take(),
          {}};
}

// Its values: the middles, 0 … 15, of keys and then values of every head, then the rests, 0 … 255, likewise.
WireSample UpgradeSample() {
  wire::BlockFrame frame = wire::AllocateUpgrade(kSession, 9, kUpgrade).value();
  const LayerRows rows = MakeRows(kUpgrade.shape, 12, 1);
  const std::vector<float> planes = EncodeUpgradeRef(kUpgrade, {{30, 2, 36}, TokenCodec::kInt8, true, {2, 9, 1}}, rows,
                                                     kBefore, kAfter, frame.block());
  return {"upgrade", std::move(frame).Seal(), UpgradeFields("upgrade").Take(), planes};
}

// Every codec, plain and equalized; fp16 is never equalized.
std::vector<std::pair<TokenCodec, bool>> Variants() {
  return {{TokenCodec::kFp16, false},     {TokenCodec::kInt8, false}, {TokenCodec::kInt8, true},
          {TokenCodec::kInt4, false},     {TokenCodec::kInt4, true},  {TokenCodec::kInt4Affine, false},
          {TokenCodec::kInt4Affine, true}};
}

std::string VariantName(TokenCodec codec, bool equalized) {
  return "layer_" + std::string(codec::TokenCodecName(codec)) + (equalized ? "_eq" : "");
}

void AddTokenLayerSamples(uint32_t layer, std::vector<WireSample>& samples) {
  const codec::TokenSplit splits[] = {{4, 133, 0}, {0, 128, 9}, {4, 129, 3}, {1, 1, 1}, {0, 3, 0}};
  const uint32_t head_dims[] = {32, 36, 40, 44, 80, 96, 100, 252, 256};
  for (const uint32_t head_dim : head_dims) {
    for (const auto& [codec, equalized] : Variants()) {
      const codec::TokenSplit split = splits[layer % std::size(splits)];
      const codec::CacheShape shape{1024, 1 + layer % 3, head_dim};
      const std::string name = VariantName(codec, equalized) + "_d" + std::to_string(head_dim);
      samples.push_back(LayerSample(name, layer, {shape, codec, equalized, split}, layer));
      ++layer;
    }
    for (const bool equalized : {false, true}) {
      const codec::TierCounts counts =
          head_dim % 8 == 0 ? codec::TierCounts{20, 30, 70, 13} : codec::TierCounts{0, 133, 0, 0};
      const codec::CacheShape shape{1024, 1 + layer % 3, head_dim};
      const std::string name = std::string(equalized ? "layer_tiers_eq_d" : "layer_tiers_d") + std::to_string(head_dim);
      samples.push_back(LayerSample(name, layer, {shape, TokenCodec::kInt8, equalized, {4, 133, 5}, counts}, layer));
      ++layer;
      if (head_dim % 16 == 0) {
        codec::LayerBlockLayout pages{
            shape, TokenCodec::kInt8, equalized, {4, 433, 5}, codec::TierCounts{20, 30, 370, 13}};
        pages.int4_pages = {equalized ? 114U : 17U, equalized ? 2U : 1U};  // a later prompt's tokens have rows
        samples.push_back(LayerSample("layer_int4_pages_" + std::to_string(layer), layer, pages, layer));
        ++layer;
      }
      if (equalized) {
        samples.push_back(LayerSample("layer_progressive_d" + std::to_string(head_dim), layer,
                                      {shape, TokenCodec::kInt8, true, {4, 133, 5}, counts, true}, layer));
        ++layer;
      }
    }
  }
}

}  // namespace

std::vector<WireSample> GoldenSamples() {
  std::vector<WireSample> samples;
  samples.push_back(HelloSample("hello_fp16", "fp16"));
  samples.push_back(HelloSample("hello_int4", "int4"));
  samples.push_back(HelloSample("hello_int8_plain", "int8,eq=off,sinks=0,residual=inf"));
  samples.push_back(HelloSample("hello_tiers", "spectrum,sinks=2"));
  samples.push_back(HelloSample("hello_progressive", "progressive,sinks=2"));
  samples.push_back(HelloSample("hello_pairs", "pnmix:3/1@50%,g=64"));
  samples.push_back(HelloSample("hello_int4_pages", "spectrum,int4=pages,sinks=2"));
  samples.push_back(VerdictSample("hello_reply_accept", "hello reply", {}));
  samples.push_back(
      VerdictSample("hello_reply_refuse", "hello reply", {StatusCode::kMismatch, "head_dim: sender 64, receiver 80"}));
  uint32_t layer = 0;
  for (const auto& [codec, equalized] : Variants()) {
    const codec::LayerBlockLayout layout{{30, 2, 36}, codec, equalized, {2, 9, 1}};
    samples.push_back(LayerSample(VariantName(codec, equalized), layer++, layout, 1));
  }
  for (const bool equalized : {false, true}) {
    const codec::LayerBlockLayout layout{
        {30, 2, 36}, TokenCodec::kInt8, equalized, {2, 9, 1}, codec::TierCounts{2, 3, 3, 1}};
    samples.push_back(LayerSample(equalized ? "layer_tiers_eq" : "layer_tiers", layer++, layout, 1));
  }
  samples.push_back(LayerSample(
      "layer_progressive", layer++,
      {{30, 2, 36}, TokenCodec::kInt8, true, {2, 9, 1}, codec::TierCounts{2, 3, 3, 1}, /*progressive=*/true}, 1));
  samples.push_back(LayerSample("layer_skipped", layer++, {{30, 2, 36}, TokenCodec::kInt8, true, {0, 9, 1, 300}}, 1));
  samples.push_back(PairSample("layer_pairs", layer++, {30, 2, 32}, {32, 32, 3, 16, codec::PairRule::kMidRise},
                               codec::PairLayout::kInterleaved, {2, 64, 1}));
  samples.push_back(
      PairSample("layer_pairs_means", layer, {30, 1, 32},
                 {32, 32, 2, 32, codec::PairRule::kMinMax, codec::PairRule::kMinMax, codec::OneBitRule::kMeans},
                 codec::PairLayout::kHalfSplit, {1, 32, 2}));
  codec::LayerBlockLayout pages{{30, 1, 32}, TokenCodec::kInt8, true, {1, 136, 1}, codec::TierCounts{1, 2, 131, 2}};
  pages.int4_pages = {3, 1};
  samples.push_back(LayerSample("layer_tiers_pages", layer + 1, pages, 1));
  samples.push_back({"session",
                     wire::EncodeSession(kSession, "pairs:2.5,sinks=4").value(),
                     Begin("session").Add("precision", "pairs:2.5,sinks=4").Take(),
                     {}});
  samples.push_back(WidthsSample());
  samples.push_back(EqualizationSample());
  samples.push_back(OfferSample());
  samples.push_back(RequestSample());
  samples.push_back(UpgradeSample());
  samples.push_back(FinishSample());
  samples.push_back({"done",
                     wire::EncodeDone(kSession, {123456789012, 30}).value(),
                     Begin("done").Add("received_bytes", 123456789012).Add("num_layers", 30).Take(),
                     {}});
  samples.push_back(VerdictSample("error", "error", {StatusCode::kNumeric, "layer 3: a key at position 17 is NaN"}));
  samples.push_back({"cancel", wire::EncodeCancel(kSession).value(), Begin("cancel").Take(), {}});
  for (WireSample& sample : AnswerSamples()) {
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<WireSample> ManyLayerSamples() {
  std::vector<WireSample> samples;
  uint32_t layer = 0;
  for (const uint32_t head_dim : {32U, 64U, 80U, 256U}) {
    for (const uint32_t value_bits : {2U, 3U, 4U, 8U}) {
      for (const uint32_t page_tokens : {32U, 64U, 128U}) {
        const codec::PairFormat format{head_dim,
                                       page_tokens,
                                       value_bits,
                                       layer % 2 == 0 ? head_dim : 16,
                                       static_cast<codec::PairRule>(layer % 2),
                                       static_cast<codec::PairRule>(layer / 2 % 2)};
        samples.push_back(PairSample("layer_pairs_d" + std::to_string(head_dim) + "_" + std::to_string(layer), layer,
                                     {1024, 1 + layer % 3, head_dim}, format,
                                     static_cast<codec::PairLayout>(layer / 2 % 2), {layer % 5, 2 * page_tokens, 7}));
        ++layer;
      }
    }
  }
  AddTokenLayerSamples(layer, samples);
  return samples;
}

}  // namespace kvant::test
