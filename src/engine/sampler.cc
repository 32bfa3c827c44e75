#include "kvant/engine/sampler.h"

#include <llama-grammar.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <string_view>

#include "kvant/base/check.h"
#include "kvant/engine/backend.h"

namespace kvant::engine {
namespace {

Status OutOfRange(const char* field, const char* range) {
  return {StatusCode::kInvalidArgument, std::string(field) + " must be " + range};
}

bool Within(float value, float low, float high) { return value >= low && value <= high; }  // false for NaN

// The grammar's parser calls itself for each level.
Status CheckGrammarDepth(std::string_view grammar) {
  constexpr int kMaxDepth = 500;
  int depth = 0;
  for (const char c : grammar) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (depth > kMaxDepth) {
      return {StatusCode::kInvalidArgument, "the grammar nests deeper than " + std::to_string(kMaxDepth) + " levels"};
    }
  }
  return OkStatus();
}

// The parser's words end with all of the grammar that it has not read.
std::string ShortParserError(std::string_view text) {
  constexpr size_t kShown = 120;
  const std::string line(text.substr(0, std::min(text.find('\n'), kShown)));
  return line.ends_with(" at ") ? line + "its end, or the end of a line" : line;
}

// llama_grammar_parser::parse without its last line, which prints the error and the whole grammar.
Status CheckGrammar(const llama_vocab* vocab, const std::string& grammar) {
  llama_grammar_parser parser(vocab);
  const auto invalid = [](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "the grammar does not parse: " + why);
  };
  try {
    // A rule takes the blanks and comments behind it; those before the first one are given a rule to follow.
    const std::string text = "kvant-first ::= \"\"\n" + grammar;
    for (const char* rest = text.c_str(); *rest != '\0';) {
      rest = parser.parse_rule(rest);
    }
  } catch (const std::exception& error) {  // the parser's way of reporting; it ends here
    return invalid(ShortParserError(error.what()));
  }
  for (const auto& [name, id] : parser.symbol_ids) {
    if (id >= parser.rules.size() || parser.rules[id].empty()) {
      return invalid("rule " + name + " is used and nowhere defined");
    }
  }
  return OkStatus();
}

// One number a draw, from seed and draw number alone: a decode worker goes on where a prefill worker stopped.
uint32_t SeedOfDraw(uint32_t seed, uint64_t draw) {
  uint64_t z = (uint64_t{seed} << 32) + (draw + 1) * 0x9E3779B97F4A7C15U;  // SplitMix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return static_cast<uint32_t>(z >> 32);
}

}  // namespace

struct Sampler::Candidates {
  std::vector<llama_token_data> tokens;
};

Status CheckSampling(const SamplingParams& params) {
  if (!Within(params.temperature, 0.0F, 100.0F)) {
    return OutOfRange("temperature", "from 0 to 100");
  }
  if (params.top_k < 0) {
    return OutOfRange("top-k", "0 (off) or more");
  }
  if (!Within(params.top_p, 0.0F, 1.0F) || params.top_p == 0.0F) {
    return OutOfRange("top-p", "above 0 and at most 1");
  }
  if (!Within(params.min_p, 0.0F, 1.0F)) {
    return OutOfRange("min-p", "from 0 to 1");
  }
  if (!Within(params.repeat_penalty, 0.1F, 10.0F)) {
    return OutOfRange("repeat-penalty", "from 0.1 to 10");
  }
  if (params.repeat_last_n < 0) {
    return OutOfRange("repeat-last-n", "0 or more");
  }
  return OkStatus();
}

Result<std::unique_ptr<Sampler>> Sampler::Create(const Tokenizer& tokenizer, const SamplingParams& params) {
  KVANT_RETURN_IF_ERROR(CheckSampling(params));
  KVANT_RETURN_IF_ERROR(CheckGrammarDepth(params.grammar));
  std::unique_ptr<Sampler> sampler(new Sampler());
  sampler->params_ = params;
  sampler->candidates_ = std::make_unique<Candidates>();
  sampler->chain_ = llama_sampler_chain_init(llama_sampler_chain_default_params());
  const auto add = [&](llama_sampler* next) { llama_sampler_chain_add(sampler->chain_, next); };
  if (params.repeat_penalty != 1.0F && params.repeat_last_n > 0) {
    sampler->penalties_ = llama_sampler_init_penalties(llama_vocab_n_tokens(tokenizer.vocab()), params.repeat_last_n,
                                                       params.repeat_penalty, 0.0F, 0.0F);
    add(sampler->penalties_);
  }
  if (params.temperature == 0.0F) {
    add(llama_sampler_init_greedy());
  } else {
    add(llama_sampler_init_top_k(params.top_k));
    add(llama_sampler_init_top_p(params.top_p, 1));
    add(llama_sampler_init_min_p(params.min_p, 1));
    add(llama_sampler_init_temp(params.temperature));
  }
  if (!params.grammar.empty()) {
    KVANT_RETURN_IF_ERROR(CheckGrammar(tokenizer.vocab(), params.grammar));
    sampler->grammar_ = llama_sampler_init_grammar(tokenizer.vocab(), params.grammar.c_str(), "root");
    if (sampler->grammar_ == nullptr) {
      return Status(StatusCode::kInvalidArgument, "the grammar cannot be used: " + TakeGgmlError());
    }
  }
  return sampler;
}

Sampler::~Sampler() {
  llama_sampler_free(chain_);
  if (grammar_ != nullptr) {
    llama_sampler_free(grammar_);
  }
}

int32_t Sampler::Draw(std::span<const float> logits, bool with_grammar) {
  std::vector<llama_token_data>& tokens = candidates_->tokens;
  tokens.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    tokens[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
  }
  llama_token_data_array array = {tokens.data(), tokens.size(), -1, false};
  if (with_grammar) {
    llama_sampler_apply(grammar_, &array);
  }
  llama_sampler_apply(chain_, &array);
  if (params_.temperature > 0.0F) {
    llama_sampler* draw = llama_sampler_init_dist(SeedOfDraw(params_.seed, num_draws_));
    llama_sampler_apply(draw, &array);
    llama_sampler_free(draw);
  }
  KVANT_CHECK(array.selected >= 0, "the last sampler of the chain selects");
  const llama_token_data& chosen = array.data[array.selected];
  return std::isinf(chosen.logit) ? -1 : chosen.id;
}

Result<int32_t> Sampler::Sample(std::span<const float> logits) {
  const bool usable = std::all_of(logits.begin(), logits.end(), [](float x) { return x < INFINITY; });
  if (!usable) {
    return Status(StatusCode::kNumeric, "NaN or infinity among the logits");
  }
  // The grammar is asked about the one chosen token first: walking it for the whole vocabulary is slow.
  int32_t token = Draw(logits, false);
  if (grammar_ != nullptr) {
    llama_token_data one = {token, 1.0F, 0.0F};
    llama_token_data_array array = {&one, 1, -1, false};
    llama_sampler_apply(grammar_, &array);
    if (std::isinf(one.logit)) {
      token = Draw(logits, true);
    }
  }
  if (token < 0) {
    return Status(StatusCode::kInvalidArgument, "the grammar allows no token here");
  }
  AcceptGenerated(token);
  return token;
}

void Sampler::AcceptPrompt(std::span<const int32_t> tokens) {
  if (penalties_ == nullptr) {
    return;
  }
  for (const int32_t token : tokens) {
    llama_sampler_accept(penalties_, token);
  }
}

void Sampler::AcceptGenerated(int32_t token) {
  llama_sampler_accept(chain_, token);
  if (grammar_ != nullptr) {
    llama_sampler_accept(grammar_, token);
  }
  ++num_draws_;
}

}  // namespace kvant::engine
