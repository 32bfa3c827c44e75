#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/attention_op.h"
#include "engine/graph.h"
#include "kvant/base/check.h"
#include "kvant/engine/profile.h"

namespace kvant::engine {

// The graph of one step for a number of sequences; kept while that number stays the same.
struct Engine::DecodeGraph {
  DecodeGraph(const Model& model, Backend* backend, uint32_t context_tokens)
      : graph(backend), builder(model, context_tokens), attention(backend, model.params()) {}

  Graph graph;
  GraphBuilder builder;
  AttentionOp attention;
  uint32_t rows = 0;
  ggml_tensor* tokens = nullptr;
  ggml_tensor* positions = nullptr;
  ggml_tensor* logits = nullptr;
};

Engine::Engine(const Model* model, Backend* backend, uint32_t context_tokens)
    : model_(model),
      backend_(backend),
      context_tokens_(context_tokens == 0 ? model->params().context_length : context_tokens),
      decode_(std::make_unique<DecodeGraph>(*model, backend, context_tokens_)) {}

Engine::~Engine() = default;

void Engine::UseProfile(std::shared_ptr<const Profile> profile) {
  std::erase_if(profiles_, [&](const auto& known) { return known->precision == profile->precision; });
  profiles_.push_back(std::move(profile));
}

const Profile* Engine::FindProfile(const codec::Precision& precision) const {
  const auto found = std::find_if(profiles_.begin(), profiles_.end(),
                                  [&](const auto& profile) { return profile->precision == precision; });
  return found == profiles_.end() ? nullptr : found->get();
}

Result<cache::Sequence> Engine::NewSequence(const codec::Precision& precision, cache::MemoryAccount* account) const {
  cache::Sequence sequence(model_->cache_shape(), precision, backend_->isa(), account);
  sequence.SetWindows(model_->params().windows);
  if (!precision.maps_of_model) {
    return sequence;
  }
  const Profile* profile = FindProfile(precision);
  if (profile == nullptr) {
    return Status(StatusCode::kNotFound, "precision '" + codec::PrecisionWord(precision) +
                                             "' takes its maps from a profile of the model, and there is none of it");
  }
  for (uint32_t layer = 0; layer < sequence.shape().num_layers; ++layer) {
    sequence.layer(layer).UseMaps(profile->layers[layer]);
  }
  return sequence;
}

Status Engine::BuildDecodeGraph(uint32_t rows) {
  DecodeGraph& step = *decode_;
  step.rows = 0;
  ggml_context* ctx = step.graph.Begin();
  step.tokens = step.graph.NewInput(GGML_TYPE_I32, rows);
  step.positions = step.graph.NewInput(GGML_TYPE_I32, rows);
  ggml_tensor* hidden = step.builder.Embed(ctx, step.tokens);
  for (uint32_t layer = 0; layer < model_->params().num_layers; ++layer) {
    const Qkv qkv = step.builder.AttentionInputs(ctx, layer, hidden, step.positions);
    ggml_tensor* attended = step.attention.BuildStoreAndAttend(ctx, layer, qkv);
    hidden = step.builder.AfterAttention(ctx, layer, attended, hidden);
  }
  step.logits = step.builder.Logits(ctx, hidden);
  step.graph.AddResult(step.logits);
  KVANT_RETURN_IF_ERROR(step.graph.Finish());
  step.rows = rows;
  return OkStatus();
}

Status Engine::Decode(std::span<const DecodeItem> items, std::vector<float>* logits, AttentionMass* mass) {
  KVANT_CHECK(!items.empty(), "a step has at least one sequence");
  KVANT_CHECK(mass == nullptr || items.size() == 1, "mass is measured of one sequence");
  const auto rows = static_cast<uint32_t>(items.size());
  std::vector<int32_t> tokens(rows);
  std::vector<int32_t> positions(rows);
  std::vector<BatchItem> batch(rows);
  for (uint32_t i = 0; i < rows; ++i) {
    const uint32_t past = items[i].sequence->num_tokens();
    KVANT_RETURN_IF_ERROR(CheckLength(uint64_t{past} + 1));
    tokens[i] = items[i].token;
    positions[i] = static_cast<int32_t>(past);
    batch[i] = {items[i].sequence, i, 1, past};
  }
  KVANT_RETURN_IF_ERROR(CheckTokens(tokens));
  if (decode_->rows != rows) {
    KVANT_RETURN_IF_ERROR(BuildDecodeGraph(rows));
  }
  for (uint32_t i = 0; i < rows; ++i) {
    if (Status status = items[i].sequence->ExtendExact(1); !status.ok()) {
      for (uint32_t done = 0; done < i; ++done) {
        KVANT_RETURN_IF_ERROR(items[done].sequence->ShrinkExact(1));
      }
      return status;
    }
  }
  ggml_backend_tensor_set(decode_->tokens, tokens.data(), 0, rows * sizeof(int32_t));
  ggml_backend_tensor_set(decode_->positions, positions.data(), 0, rows * sizeof(int32_t));
  decode_->attention.BeginMass(mass == nullptr ? PromptStatistics::kNone : PromptStatistics::kMass,
                               static_cast<uint32_t>(positions[0]) + 1, 0, model_->params().num_layers);
  decode_->attention.SetBatch(std::move(batch), 0, model_->params().num_layers);
  KVANT_RETURN_IF_ERROR(decode_->graph.Compute());
  if (mass != nullptr) {
    mass->clear();
    for (uint32_t layer = 0; layer < model_->params().num_layers; ++layer) {
      mass->push_back(decode_->attention.TakeMass(layer));
    }
  }
  logits->resize(rows * size_t{model_->params().vocab_size});
  ggml_backend_tensor_get(decode_->logits, logits->data(), 0, logits->size() * sizeof(float));
  return OkStatus();
}

}  // namespace kvant::engine
