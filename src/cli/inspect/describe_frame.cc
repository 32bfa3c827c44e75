#include "cli/inspect/describe_frame.h"

#include <fmt/core.h>

#include "cli/inspect/describe_layer.h"
#include "kvant/wire/answer.h"
#include "kvant/wire/layer_frame.h"
#include "kvant/wire/maps_frame.h"
#include "kvant/wire/messages.h"
#include "kvant/wire/upgrade.h"

namespace kvant::cli {
namespace {

constexpr const char* kRopeLayouts[wire::kNumRopeLayouts] = {"none", "adjacent", "halves"};

std::string CodecWord(const codec::Precision& precision) {
  return precision.pairs              ? "pair pages"
         : precision.is_progressive() ? "progressive"
         : precision.spectrum         ? "spectrum"
                                      : std::string(codec::TokenCodecName(precision.codec));
}

Json ToJson(const wire::Hello& hello) {
  const codec::Precision& precision = hello.precision;
  const bool endless = precision.residual == codec::Precision::kEndlessResidual;
  return {{"protocol", hello.protocol},
          {"layers", hello.model.shape.num_layers},
          {"kv_heads", hello.model.shape.num_kv_heads},
          {"head_dim", hello.model.shape.head_dim},
          {"model_fingerprint", Hex64(hello.model.model_fingerprint)},
          {"tokenizer_fingerprint", Hex64(hello.model.tokenizer_fingerprint)},
          {"rope_layout", kRopeLayouts[static_cast<size_t>(hello.model.rope_layout)]},
          {"rope_base", hello.model.rope_base},
          {"rope_digest", Hex64(hello.model.rope_digest)},
          {"prompt_tokens", hello.num_prompt_tokens},
          {"context_tokens", hello.num_context_tokens},
          {"codec", CodecWord(precision)},
          {"equalize", precision.equalize},
          {"sinks", precision.num_sinks},
          {"residual", endless ? Json("inf") : Json(precision.residual)}};
}

Json ToJson(const wire::Verdict& verdict) { return {{"code", StatusCodeName(verdict.code)}, {"text", verdict.text}}; }

Json ToJson(const wire::Finish& finish) {
  return {{"prompt_tokens", finish.prompt_tokens.size()},
          {"first_token", finish.first_token},
          {"first_position", finish.first_position},
          {"sampler_seed", finish.sampler.seed},
          {"sampler_draws", finish.sampler.num_draws}};
}

Json ToJson(const wire::Done& done) { return {{"received_bytes", done.received_bytes}, {"layers", done.num_layers}}; }

Json ToJson(const wire::AnswerRequest& request) {
  return {{"answer_version", request.version},
          {"max_tokens", request.max_tokens},
          {"ignore_eos", request.ignore_eos},
          {"temperature", request.temperature},
          {"top_k", request.top_k},
          {"top_p", request.top_p},
          {"min_p", request.min_p},
          {"repeat_penalty", request.repeat_penalty},
          {"repeat_last_n", request.repeat_last_n},
          {"seed", request.seed},
          {"grammar_bytes", request.grammar.size()}};
}

Json ToJson(const wire::AnswerText& text) {
  return {{"microseconds", text.microseconds}, {"tokens", text.tokens}, {"text", text.text}};
}

Json ToJson(const wire::AnswerEnd& end) {
  return {{"reason", end.reason == 0 ? "stop" : "length"},
          {"tokens", end.tokens},
          {"decode_microseconds", end.decode_microseconds},
          {"kv_bytes", end.kv_bytes},
          {"kv_bytes_fp16", end.kv_bytes_fp16},
          {"kv_bytes_allocated", end.kv_bytes_allocated},
          {"bits", {{"payload", end.payload_bits}, {"effective", end.effective_bits}}},
          {"tiers",
           {{"fp16", end.tier_tokens[0]},
            {"int8", end.tier_tokens[1]},
            {"int4", end.tier_tokens[2]},
            {"dropped", end.tier_tokens[3]}}},
          {"received_encoded", end.received_encoded},
          {"received_exact", end.received_exact}};
}

Json ToJson(const wire::MapsFrame& frame) {
  Json json = {{"layers", frame.shape.num_layers},
               {"kv_heads", frame.shape.num_kv_heads},
               {"head_dim", frame.shape.head_dim},
               {"maps", frame.maps.pairs ? "widths" : "equalization"}};
  if (frame.maps.pairs) {
    json["bits_per_key"] = frame.maps.pairs->bits_per_key;
    json["page_tokens"] = frame.maps.pairs->format.page_tokens;
  }
  return json;
}

Json ToJson(const wire::UpgradeOffer& offer) { return {{"layers", offer.layers.size()}}; }

Json ToJson(const codec::UpgradeLayout& layout) {
  return {{"layers", layout.shape.num_layers},
          {"kv_heads", layout.shape.num_kv_heads},
          {"head_dim", layout.shape.head_dim},
          {"tokens", layout.num_tokens},
          {"planes_bytes", layout.total_bytes()}};
}
Json ToJson(const wire::UpgradeRequest& request) { return ToJson(request.layout); }
Json ToJson(const wire::UpgradeView& upgrade) { return ToJson(upgrade.layout); }

template <typename T>
Json ToJson(const Result<T>& decoded) {
  return decoded.ok() ? ToJson(*decoded) : Json::object();
}

}  // namespace

std::string Hex64(uint64_t value) { return fmt::format("0x{:016x}", value); }

Json DescribePayload(const wire::FrameView& frame) {
  switch (frame.header.type) {
    case wire::FrameType::kHello: return ToJson(wire::DecodeHello(frame));
    case wire::FrameType::kHelloReply: return ToJson(wire::DecodeHelloReply(frame));
    case wire::FrameType::kFinish: return ToJson(wire::DecodeFinish(frame));
    case wire::FrameType::kDone: return ToJson(wire::DecodeDone(frame));
    case wire::FrameType::kError: return ToJson(wire::DecodeError(frame));
    case wire::FrameType::kAnswerRequest: return ToJson(wire::DecodeAnswerRequest(frame));
    case wire::FrameType::kAnswerText: return ToJson(wire::DecodeAnswerText(frame));
    case wire::FrameType::kAnswerEnd: return ToJson(wire::DecodeAnswerEnd(frame));
    case wire::FrameType::kUpgradeOffer: return ToJson(wire::DecodeUpgradeOffer(frame));
    case wire::FrameType::kUpgradeRequest: return ToJson(wire::DecodeUpgradeRequest(frame));
    case wire::FrameType::kSession: {
      const Result<std::string> word = wire::DecodeSession(frame);
      return word.ok() ? Json{{"precision", *word}} : Json::object();
    }
    case wire::FrameType::kMaps: return ToJson(wire::DecodeMaps(frame));
    case wire::FrameType::kUpgrade: return ToJson(wire::DecodeUpgrade(frame));
    case wire::FrameType::kLayer: {
      const Result<wire::LayerView> view = wire::DecodeLayer(frame);
      return view.ok() ? DescribeLayer(*view) : Json::object();
    }
    default: return Json::object();
  }
}

}  // namespace kvant::cli
