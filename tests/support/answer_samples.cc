#include <bit>
#include <string>
#include <utility>

#include "kvant/wire/answer.h"
#include "support/wire_samples.h"

namespace kvant::test {
namespace {

constexpr uint64_t kSession = 0x0123456789ABCDEF;

// Numbers with a fraction by their bits.
std::string Bits(float value) { return std::to_string(std::bit_cast<uint32_t>(value)); }
std::string Bits(double value) { return std::to_string(std::bit_cast<uint64_t>(value)); }

std::string Begin(const char* type) {
  return "version 1\ntype " + std::string(type) + "\nsession " + std::to_string(kSession) + "\nlayer 0\n";
}

WireSample RequestSample(const std::string& name, const wire::AnswerRequest& request) {
  const std::string fields = Begin("answer request") + "answer_version 1\nmax_tokens " +
                             std::to_string(request.max_tokens) + "\nignore_eos " + std::to_string(request.ignore_eos) +
                             "\ntemperature_bits " + Bits(request.temperature) + "\ntop_k " +
                             std::to_string(request.top_k) + "\ntop_p_bits " + Bits(request.top_p) + "\nmin_p_bits " +
                             Bits(request.min_p) + "\nrepeat_penalty_bits " + Bits(request.repeat_penalty) +
                             "\nrepeat_last_n " + std::to_string(request.repeat_last_n) + "\nseed " +
                             std::to_string(request.seed) + "\ngrammar " + request.grammar + "\n";
  return {name, wire::EncodeAnswerRequest(kSession, request).value(), fields, {}};
}

WireSample TextSample() {
  const wire::AnswerText text{123'456'789, 7, "Zürich 🜁"};
  return {"answer_text",
          wire::EncodeAnswerText(kSession, text).value(),
          Begin("answer text") + "microseconds 123456789\ntokens 7\ntext Zürich 🜁\n",
          {}};
}

WireSample EndSample() {
  const wire::AnswerEnd end{1, 64, 2'500'000, 7'000'000, 14'000'000, 8'388'608, 8, 8.5, {4, 992.5, 0, 3.5}, 996, 4};
  const std::string fields =
      Begin("answer end") +
      "reason 1\ntokens 64\ndecode_microseconds 2500000\nkv_bytes 7000000\nkv_bytes_fp16 14000000\n"
      "kv_bytes_allocated 8388608\npayload_bits_bits " +
      Bits(8.0) + "\neffective_bits_bits " + Bits(8.5) + "\nfp16_bits " + Bits(4.0) + "\nint8_bits " + Bits(992.5) +
      "\nint4_bits 0\ndropped_bits " + Bits(3.5) + "\nreceived_encoded 996\nreceived_exact 4\n";
  return {"answer_end", wire::EncodeAnswerEnd(kSession, end).value(), fields, {}};
}

}  // namespace

std::vector<WireSample> AnswerSamples() {
  wire::AnswerRequest request{wire::kAnswerVersion, 128, false, 0.0F, 40, 0.95F, 0.05F, 1.0F, 64, 0, ""};
  std::vector<WireSample> samples;
  samples.push_back(RequestSample("answer_request", request));
  request.ignore_eos = true;
  request.temperature = 0.7F;
  request.seed = 4'000'000'000U;
  request.grammar = "root ::= \"yes\" | \"no\"";
  samples.push_back(RequestSample("answer_request_grammar", request));
  samples.push_back(TextSample());
  samples.push_back(EndSample());
  return samples;
}

}  // namespace kvant::test
