#include "kvant/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "eval/attention_record.h"
#include "eval/divergence.h"
#include "eval/recorded_prompt.h"
#include "eval/round_trip.h"
#include "kvant/base/thread_pool.h"
#include "kvant/engine/prompt_encoder.h"

namespace kvant::eval {
namespace {

// What one pass over one window leaves behind.
struct Pass {
  std::vector<float> losses;         ///< of each scored token
  std::vector<float> distributions;  ///< log probabilities [kl rows, vocab_size], of the reference pass
  std::vector<float> divergences;    ///< of each kl row, of the other passes
  std::optional<std::vector<double>> attention_divergences;
  codec::BitsPerElement bits;
};

Estimate EstimateOf(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  Estimate estimate;
  for (const double value : values) {
    estimate.mean += value / n;
  }
  double squares = 0;
  for (const double value : values) {
    squares += (value - estimate.mean) * (value - estimate.mean);
  }
  estimate.standard_error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  return estimate;
}

// What is worth recording: of what is wanted, what the first one wants.
engine::PromptStatistics StatisticsOf(std::span<const Candidate> candidates) {
  for (const Candidate& candidate : candidates) {
    const engine::PromptStatistics wanted = engine::StatisticsFor(candidate.precision);
    if (wanted != engine::PromptStatistics::kNone) {
      return wanted;
    }
  }
  return engine::PromptStatistics::kNone;
}

class WindowScorer {
 public:
  /// What is recorded of the prompt is what the candidates want.
  WindowScorer(engine::Engine& engine, std::span<const int32_t> window, const PerplexityOptions& options,
               std::span<const Candidate> candidates)
      : engine_(engine),
        window_(window),
        options_(options),
        recorded_statistics_(StatisticsOf(candidates)),
        records_queries_(std::any_of(candidates.begin(), candidates.end(),
                                     [](const Candidate& each) { return each.keys == KeysOf::kReselection; })),
        attention_(engine.model().params(), options.prompt_tokens, options.attention_stride) {}

  Result<Pass> Run(const Candidate& candidate, const Pass* reference) {
    cache::MemoryAccount account;
    KVANT_ASSIGN_OR_RETURN(cache::Sequence sequence,
                           engine_.NewSequence(candidate.is_reference() ? exact_ : candidate.precision, &account));
    engine::EncodeInPlace encode(sequence.precision(), codec::PromptTail::kEncodeAll, &engine_.backend().pool());
    Pass pass;
    engine::PrefillOptions prefill = Cancellable();
    prefill.all_logits = [&](uint32_t first, uint32_t rows, std::span<const float> logits) {
      Score(prefill_offset_ + first, rows, logits, reference, &pass);
    };
    std::vector<float> last;
    if (options_.protocol == Protocol::kAllQuantized) {
      prefill.attention = engine::PromptAttention::kQuantized;
      prefill_offset_ = 0;
      KVANT_RETURN_IF_ERROR(engine_.Prefill(sequence, window_, encode, prefill, &last));
      pass.bits = sequence.bits();
      return pass;
    }
    if (candidate.is_reference()) {
      RoundTrip round_trip(candidate, engine_.model().params(), &engine_.backend(), recorded_->queries());
      KVANT_RETURN_IF_ERROR(TakePrompt(sequence, round_trip));
      pass.bits = round_trip.bits();
    } else {
      KVANT_RETURN_IF_ERROR(reference == nullptr ? RecordPrompt(sequence) : TakePrompt(sequence, encode));
      pass.bits = sequence.bits();
    }
    if (reference == nullptr) {
      prefill.queries = [&](uint32_t layer, uint32_t first, uint32_t rows, std::span<const float> queries) {
        attention_.AddQueries(layer, first, rows, queries);
      };
    } else {
      pass.attention_divergences = attention_.Divergence(sequence, engine_.backend().pool());
    }
    // The last prompt token's logits are exact in every precision, so scoring starts with the token after it.
    prefill_offset_ = options_.prompt_tokens;
    KeepExact keep;
    KVANT_RETURN_IF_ERROR(engine_.Prefill(sequence, window_.subspan(options_.prompt_tokens), keep, prefill, &last));
    if (reference == nullptr) {
      attention_.TakeKeys(sequence);
      pass.attention_divergences = attention_.Divergence(sequence, engine_.backend().pool());
    }
    return pass;
  }

 private:
  // The prompt is computed once, for fp16, and replayed for the others.
  Status RecordPrompt(cache::Sequence& sequence) {
    RecordedPrompt& recorded = recorded_.emplace(recorded_statistics_);
    engine::PrefillOptions options = Cancellable();
    if (records_queries_) {
      options.queries = [&](uint32_t layer, uint32_t, uint32_t, std::span<const float> queries) {
        recorded.AddQueries(layer, queries);
      };
    }
    std::vector<float> last;
    return engine_.Prefill(sequence, window_.first(options_.prompt_tokens), recorded, options, &last);
  }

  Status TakePrompt(cache::Sequence& sequence, engine::LayerConsumer& consumer) {
    const engine::PromptStatistics wanted = consumer.wanted();
    if (wanted == engine::PromptStatistics::kNone || wanted == recorded_statistics_) {
      return recorded_->Replay(sequence, consumer);
    }
    std::vector<float> last;
    return engine_.Prefill(sequence, window_.first(options_.prompt_tokens), consumer, Cancellable(), &last);
  }

  engine::PrefillOptions Cancellable() const {
    engine::PrefillOptions options;
    options.cancelled = options_.cancelled;
    return options;
  }

  struct KeepExact : engine::LayerConsumer {
    Status LayerDone(uint32_t, cache::LayerCache&, const engine::LayerStatistics&) override { return OkStatus(); }
  };

  bool IsKlRow(uint32_t position) const {
    return options_.protocol == Protocol::kExactPrompt || position % options_.kl_stride == options_.kl_stride - 1;
  }

  void Score(uint32_t first, uint32_t rows, std::span<const float> logits, const Pass* reference, Pass* pass) {
    const size_t vocab_size = logits.size() / rows;
    std::vector<float> log_probabilities(logits.begin(), logits.end());
    engine_.backend().pool().ParallelFor(rows, [&](size_t row, int) {
      LogSoftmax<float>(std::span(log_probabilities).subspan(row * vocab_size, vocab_size));
    });
    for (uint32_t row = 0; row < rows; ++row) {
      const std::span<const float> p = std::span(log_probabilities).subspan(row * vocab_size, vocab_size);
      const uint32_t position = first + row;
      if (position + 1 < window_.size()) {
        pass->losses.push_back(-p[static_cast<size_t>(window_[position + 1])]);
      }
      if (!IsKlRow(position)) {
        continue;
      }
      if (reference == nullptr) {
        pass->distributions.insert(pass->distributions.end(), p.begin(), p.end());
      } else {
        const size_t kl_row = pass->divergences.size();
        pass->divergences.push_back(static_cast<float>(
            Divergence<float>(std::span(reference->distributions).subspan(kl_row * vocab_size, vocab_size), p)));
      }
    }
  }

  const codec::Precision exact_ = codec::ParsePrecision("fp16").value();
  engine::Engine& engine_;
  std::span<const int32_t> window_;
  const PerplexityOptions& options_;
  uint32_t prefill_offset_ = 0;
  engine::PromptStatistics recorded_statistics_;
  bool records_queries_;
  std::optional<RecordedPrompt> recorded_;
  AttentionRecord attention_;
};

Status CheckSizes(size_t num_tokens, const PerplexityOptions& options) {
  const auto invalid = [](std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); };
  if (options.num_windows < 1 || options.window_tokens < 2) {
    return invalid("at least one window of two tokens is needed");
  }
  if (options.protocol == Protocol::kExactPrompt &&
      (options.prompt_tokens < 1 || options.prompt_tokens + 2 > options.window_tokens)) {
    return invalid("a prompt of " + std::to_string(options.prompt_tokens) +
                   " tokens leaves nothing to score in a window of " + std::to_string(options.window_tokens));
  }
  if (options.attention_stride < 1) {
    return invalid("attention is compared at every so-manyth token; 0 is none of them");
  }
  const uint64_t needed = uint64_t{options.num_windows} * options.window_tokens;
  if (num_tokens < needed) {
    return invalid("the text has " + std::to_string(num_tokens) + " tokens; " + std::to_string(options.num_windows) +
                   " windows of " + std::to_string(options.window_tokens) + " need " + std::to_string(needed));
  }
  return OkStatus();
}

// Before the first pass: they are minutes each.
Status CheckCandidates(std::span<const Candidate> candidates, Protocol protocol, uint32_t head_dim) {
  for (const Candidate& candidate : candidates) {
    KVANT_RETURN_IF_ERROR(codec::CheckPrecision(candidate.precision, head_dim));
    if (protocol == Protocol::kExactPrompt) {
      continue;
    }
    const std::string what = "precision '" + CandidateWord(candidate) + "'";
    if (candidate.is_reference()) {
      return {StatusCode::kInvalidArgument, what + " is a reference: its prompt has to be exact"};
    }
    const engine::PromptStatistics wanted = engine::StatisticsFor(candidate.precision);
    if (wanted == engine::PromptStatistics::kMass || wanted == engine::PromptStatistics::kSampledMass) {
      return {StatusCode::kInvalidArgument,
              what + ": its tiers are chosen by the attention of an exact prompt; protocol all has none"};
    }
  }
  return OkStatus();
}

// All windows of one candidate, token by token beside the reference.
struct Totals {
  std::vector<double> losses;
  std::vector<double> increases;
  std::vector<double> divergences;
  std::optional<std::vector<double>> attention_divergences = std::vector<double>();
  codec::BitsPerElement bits;

  void Add(const Pass& pass, const Pass& reference) {
    for (size_t i = 0; i < pass.losses.size(); ++i) {
      losses.push_back(static_cast<double>(pass.losses[i]));
      increases.push_back(static_cast<double>(pass.losses[i]) - static_cast<double>(reference.losses[i]));
    }
    divergences.insert(divergences.end(), pass.divergences.begin(), pass.divergences.end());
    if (pass.attention_divergences && attention_divergences) {
      attention_divergences->insert(attention_divergences->end(), pass.attention_divergences->begin(),
                                    pass.attention_divergences->end());
    } else {
      attention_divergences.reset();
    }
    bits = pass.bits;
  }
  PerplexityResult Finish(const Candidate& candidate) const {
    PerplexityResult result{
        candidate, std::exp(EstimateOf(losses).mean), EstimateOf(increases), EstimateOf(divergences), {}, bits};
    if (attention_divergences) {
      result.attention_kl = EstimateOf(*attention_divergences);
    }
    return result;
  }
};

}  // namespace

Result<std::vector<PerplexityResult>> Perplexity(engine::Engine& engine, std::span<const int32_t> tokens,
                                                 std::span<const Candidate> candidates,
                                                 const PerplexityOptions& options) {
  KVANT_RETURN_IF_ERROR(CheckSizes(tokens.size(), options));
  KVANT_RETURN_IF_ERROR(CheckCandidates(candidates, options.protocol, engine.model().params().head_dim));
  KVANT_ASSIGN_OR_RETURN(const Candidate exact, ParseCandidate("fp16"));
  std::vector<Totals> totals(candidates.size() + 1);
  const auto num_passes = static_cast<uint32_t>(totals.size()) * options.num_windows;
  uint32_t passes_done = 0;
  const auto advance = [&] {
    if (options.progress) {
      options.progress(++passes_done, num_passes);
    }
  };
  for (uint32_t window = 0; window < options.num_windows; ++window) {
    const size_t begin = size_t{window} * options.window_tokens;
    WindowScorer scorer(engine, tokens.subspan(begin, options.window_tokens), options, candidates);
    KVANT_ASSIGN_OR_RETURN(const Pass reference, scorer.Run(exact, nullptr));
    totals[0].Add(reference, reference);
    advance();
    for (size_t i = 0; i < candidates.size(); ++i) {
      KVANT_ASSIGN_OR_RETURN(const Pass pass, scorer.Run(candidates[i], &reference));
      totals[i + 1].Add(pass, reference);
      advance();
    }
  }
  std::vector<PerplexityResult> results;
  results.push_back(totals[0].Finish(exact));
  for (size_t i = 0; i < candidates.size(); ++i) {
    results.push_back(totals[i + 1].Finish(candidates[i]));
  }
  return results;
}

}  // namespace kvant::eval
