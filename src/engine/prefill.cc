#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/attention_op.h"
#include "engine/graph.h"
#include "kvant/base/check.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

namespace {

codec::PairLayout PairLayoutOf(const ModelParams& params) {
  return params.rope.layout == RopeLayout::kHalves ? codec::PairLayout::kHalfSplit : codec::PairLayout::kInterleaved;
}

}  // namespace

// A prompt on its way through the layers.
struct Engine::Prompt {
  Prompt(Engine* engine, cache::Sequence& target, std::span<const int32_t> prompt_tokens,
         const PrefillOptions& prompt_options)
      : sequence(target),
        tokens(prompt_tokens),
        options(prompt_options),
        past(target.num_tokens()),
        graph(engine->backend_),
        builder(*engine->model_, engine->context_tokens_),
        attention(engine->backend_, engine->model_->params()),
        hidden(prompt_tokens.size() * engine->model_->params().embedding) {}

  uint32_t size() const { return static_cast<uint32_t>(tokens.size()); }
  template <typename F>
  Status ForEachChunk(F&& run) {
    for (uint32_t first = 0; first < size(); first += options.chunk_tokens) {
      if (options.cancelled && options.cancelled()) {
        return {StatusCode::kCancelled, "prefill cancelled"};
      }
      KVANT_RETURN_IF_ERROR(run(first, std::min(options.chunk_tokens, size() - first)));
    }
    return OkStatus();
  }
  std::span<float> HiddenRows(uint32_t first, uint32_t rows) {
    const size_t width = hidden.size() / tokens.size();
    return std::span(hidden).subspan(first * width, rows * width);
  }
  void BeginPairs(PromptStatistics wanted, const Model& model) {
    pairs.clear();
    if (wanted == PromptStatistics::kPairs) {
      const ModelParams& params = model.params();
      pairs.assign(params.num_kv_heads, policy::PairStatistics(PairLayoutOf(params), params.head_dim));
    }
  }
  bool wants_queries() const { return !pairs.empty() || options.queries; }
  void TakeQueries(uint32_t layer, uint32_t first, uint32_t rows, std::span<const float> rows_of_all,
                   const Model& model, ThreadPool& pool) {
    AddQueries(rows_of_all, rows, model, pool);
    if (options.queries) {
      options.queries(layer, first, rows, rows_of_all);
    }
  }
  // Of every KV head its query heads, one after the other: the same sums on any number of threads.
  void AddQueries(std::span<const float> rows_of_all, uint32_t rows, const Model& model, ThreadPool& pool) {
    const ModelParams& params = model.params();
    const uint32_t group = params.num_q_heads / params.num_kv_heads;
    const size_t width = size_t{params.head_dim} * params.num_q_heads;
    pool.ParallelFor(pairs.size(), [&](size_t kv_head, int) {
      for (uint32_t head = 0; head < group; ++head) {
        pairs[kv_head].AddQueries(rows_of_all.data() + (kv_head * group + head) * params.head_dim, rows, width);
      }
    });
  }
  void SetBatch(uint32_t layer, uint32_t first, uint32_t rows) {
    attention.SetBatch({{&sequence, 0, rows, past + first}}, layer, 1);
  }

  cache::Sequence& sequence;
  std::span<const int32_t> tokens;
  const PrefillOptions& options;
  uint32_t past;  ///< tokens the sequence held before the prompt
  Graph graph;
  GraphBuilder builder;
  AttentionOp attention;
  std::vector<float> hidden;   ///< [tokens, embedding]
  std::vector<float> queries;  ///< [tokens, head_dim · num_q_heads]; of a chunk where attention is exact
  std::vector<policy::PairStatistics> pairs;  ///< of the layer, where wanted
};

namespace {

void Set(ggml_tensor* input, std::span<const float> values) {
  ggml_backend_tensor_set(input, values.data(), 0, values.size_bytes());
}

void SetPositions(ggml_tensor* input, uint32_t first, uint32_t rows) {
  std::vector<int32_t> positions(rows);
  for (uint32_t i = 0; i < rows; ++i) {
    positions[i] = static_cast<int32_t>(first + i);
  }
  ggml_backend_tensor_set(input, positions.data(), 0, positions.size() * sizeof(int32_t));
}

void Get(const ggml_tensor* result, std::span<float> values) {
  ggml_backend_tensor_get(result, values.data(), 0, values.size_bytes());
}

}  // namespace

Status Engine::CheckTokens(std::span<const int32_t> tokens) const {
  const auto vocab_size = static_cast<int64_t>(model_->params().vocab_size);
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return {StatusCode::kInvalidArgument,
              "token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab_size)};
    }
  }
  return OkStatus();
}

Status Engine::CheckLength(uint64_t tokens) const {
  if (model_->params().rope.has_long_factors && tokens > context_tokens_) {
    return {StatusCode::kCapacityExceeded, "a sequence of " + std::to_string(tokens) + " tokens in an engine for " +
                                               std::to_string(context_tokens_) + ": its RoPE factors are for those"};
  }
  return OkStatus();
}

Status Engine::Prefill(cache::Sequence& sequence, std::span<const int32_t> tokens, LayerConsumer& consumer,
                       const PrefillOptions& options, std::vector<float>* last_logits) {
  if (tokens.empty()) {
    return {StatusCode::kInvalidArgument, "the prompt has no tokens"};
  }
  KVANT_RETURN_IF_ERROR(codec::CheckPrecision(sequence.precision(), model_->params().head_dim));
  KVANT_RETURN_IF_ERROR(CheckTokens(tokens));
  KVANT_RETURN_IF_ERROR(CheckLength(uint64_t{sequence.num_tokens()} + tokens.size()));
  Prompt prompt(this, sequence, tokens, options);
  KVANT_RETURN_IF_ERROR(EmbedPrompt(prompt));
  const bool wants_mass =
      consumer.wanted() == PromptStatistics::kMass || consumer.wanted() == PromptStatistics::kSampledMass;
  if (options.attention != PromptAttention::kExact && wants_mass) {
    return {StatusCode::kInvalidArgument, "attention mass is measured where the prompt's attention is exact"};
  }
  for (uint32_t layer = 0; layer < model_->params().num_layers; ++layer) {
    cache::LayerCache& cache = sequence.layer(layer);
    LayerStatistics statistics{layer + 1 == model_->params().num_layers, {}, {}};
    prompt.BeginPairs(consumer.wanted(), *model_);
    prompt.attention.BeginMass(consumer.wanted(), prompt.past + prompt.size(), layer, 1);
    KVANT_RETURN_IF_ERROR(cache.ExtendExact(prompt.size()));
    if (options.attention == PromptAttention::kExact) {
      KVANT_RETURN_IF_ERROR(prompt.ForEachChunk(
          [&](uint32_t first, uint32_t rows) { return RunExactChunk(prompt, layer, first, rows); }));
      statistics.mass = prompt.attention.TakeMass(layer);
      statistics.pairs = std::move(prompt.pairs);
      KVANT_RETURN_IF_ERROR(consumer.LayerDone(layer, cache, statistics));
    } else {
      prompt.queries.resize(tokens.size() * model_->params().head_dim * model_->params().num_q_heads);
      KVANT_RETURN_IF_ERROR(prompt.ForEachChunk(
          [&](uint32_t first, uint32_t rows) { return RunInputsChunk(prompt, layer, first, rows); }));
      statistics.pairs = std::move(prompt.pairs);
      cache.SetWindow(0);  // the first rows have yet to meet what will have left the last one's window
      KVANT_RETURN_IF_ERROR(consumer.LayerDone(layer, cache, statistics));
      KVANT_RETURN_IF_ERROR(prompt.ForEachChunk(
          [&](uint32_t first, uint32_t rows) { return RunAttendChunk(prompt, layer, first, rows); }));
      cache.SetWindow(model_->params().windows[layer]);
    }
    if (options.progress) {
      options.progress(layer + 1);
    }
  }
  return RunLogits(prompt, last_logits);
}

Status Engine::EmbedPrompt(Prompt& prompt) {
  return prompt.ForEachChunk([&](uint32_t first, uint32_t rows) {
    ggml_context* ctx = prompt.graph.Begin();
    ggml_tensor* tokens = prompt.graph.NewInput(GGML_TYPE_I32, rows);
    ggml_tensor* hidden = prompt.builder.Embed(ctx, tokens);
    prompt.graph.AddResult(hidden);
    KVANT_RETURN_IF_ERROR(prompt.graph.Finish());
    ggml_backend_tensor_set(tokens, prompt.tokens.data() + first, 0, rows * sizeof(int32_t));
    KVANT_RETURN_IF_ERROR(prompt.graph.Compute());
    Get(hidden, prompt.HiddenRows(first, rows));
    return OkStatus();
  });
}

// One chunk of one layer. In the last layer only the rows whose logits are wanted go beyond the cache.
Status Engine::RunExactChunk(Prompt& prompt, uint32_t layer, uint32_t first, uint32_t rows) {
  const bool last_layer = layer + 1 == model_->params().num_layers;
  const bool store_only =
      last_layer && !prompt.options.all_logits && !prompt.attention.measures_mass() && first + rows < prompt.size();
  ggml_tensor* q = nullptr;
  ggml_context* ctx = prompt.graph.Begin();
  ggml_tensor* hidden = prompt.graph.NewInput(GGML_TYPE_F32, model_->params().embedding, rows);
  ggml_tensor* positions = prompt.graph.NewInput(GGML_TYPE_I32, rows);
  const Qkv qkv = prompt.builder.AttentionInputs(ctx, layer, hidden, positions);
  if (prompt.wants_queries()) {
    q = ggml_cont(ctx, qkv.q);
    prompt.graph.AddResult(q);
  }
  ggml_tensor* result = prompt.attention.BuildStore(ctx, layer, qkv.k, qkv.v);
  if (!store_only) {
    ggml_tensor* attended = prompt.attention.BuildAttend(ctx, layer, qkv.q, result);
    result = prompt.builder.AfterAttention(ctx, layer, attended, hidden);
  }
  prompt.graph.AddResult(result);
  KVANT_RETURN_IF_ERROR(prompt.graph.Finish());
  Set(hidden, prompt.HiddenRows(first, rows));
  SetPositions(positions, prompt.past + first, rows);
  prompt.SetBatch(layer, first, rows);
  KVANT_RETURN_IF_ERROR(prompt.graph.Compute());
  if (!store_only) {
    Get(result, prompt.HiddenRows(first, rows));
  }
  if (q != nullptr) {
    prompt.queries.resize(rows * size_t{model_->params().head_dim} * model_->params().num_q_heads);
    Get(q, prompt.queries);
    prompt.TakeQueries(layer, first, rows, prompt.queries, *model_, backend_->pool());
  }
  return OkStatus();
}

Status Engine::RunInputsChunk(Prompt& prompt, uint32_t layer, uint32_t first, uint32_t rows) {
  ggml_context* ctx = prompt.graph.Begin();
  ggml_tensor* hidden = prompt.graph.NewInput(GGML_TYPE_F32, model_->params().embedding, rows);
  ggml_tensor* positions = prompt.graph.NewInput(GGML_TYPE_I32, rows);
  const Qkv qkv = prompt.builder.AttentionInputs(ctx, layer, hidden, positions);
  ggml_tensor* q = ggml_cont(ctx, qkv.q);
  prompt.graph.AddResult(q);
  prompt.graph.AddResult(prompt.attention.BuildStore(ctx, layer, qkv.k, qkv.v));
  KVANT_RETURN_IF_ERROR(prompt.graph.Finish());
  Set(hidden, prompt.HiddenRows(first, rows));
  SetPositions(positions, prompt.past + first, rows);
  prompt.SetBatch(layer, first, rows);
  KVANT_RETURN_IF_ERROR(prompt.graph.Compute());
  const size_t width = prompt.queries.size() / prompt.tokens.size();
  const std::span<float> queries = std::span(prompt.queries).subspan(first * width, rows * width);
  Get(q, queries);
  prompt.TakeQueries(layer, first, rows, queries, *model_, backend_->pool());
  return OkStatus();
}

Status Engine::RunAttendChunk(Prompt& prompt, uint32_t layer, uint32_t first, uint32_t rows) {
  const ModelParams& params = model_->params();
  ggml_context* ctx = prompt.graph.Begin();
  ggml_tensor* hidden = prompt.graph.NewInput(GGML_TYPE_F32, params.embedding, rows);
  const size_t width = size_t{params.head_dim} * params.num_q_heads;
  ggml_tensor* q = prompt.graph.NewInput(GGML_TYPE_F32, static_cast<int64_t>(width), rows);
  ggml_tensor* heads = ggml_reshape_3d(ctx, q, params.head_dim, params.num_q_heads, rows);
  ggml_tensor* attended = prompt.attention.BuildAttend(ctx, layer, heads, nullptr);
  ggml_tensor* result = prompt.builder.AfterAttention(ctx, layer, attended, hidden);
  prompt.graph.AddResult(result);
  KVANT_RETURN_IF_ERROR(prompt.graph.Finish());
  Set(hidden, prompt.HiddenRows(first, rows));
  Set(q, std::span<const float>(prompt.queries).subspan(first * width, rows * width));
  prompt.SetBatch(layer, first, rows);
  KVANT_RETURN_IF_ERROR(prompt.graph.Compute());
  Get(result, prompt.HiddenRows(first, rows));
  return OkStatus();
}

Status Engine::RunLogits(Prompt& prompt, std::vector<float>* last_logits) {
  const size_t vocab_size = model_->params().vocab_size;
  std::vector<float> logits;
  const auto run = [&](uint32_t first, uint32_t rows) {
    ggml_context* ctx = prompt.graph.Begin();
    ggml_tensor* hidden = prompt.graph.NewInput(GGML_TYPE_F32, model_->params().embedding, rows);
    ggml_tensor* result = prompt.builder.Logits(ctx, hidden);
    prompt.graph.AddResult(result);
    KVANT_RETURN_IF_ERROR(prompt.graph.Finish());
    Set(hidden, prompt.HiddenRows(first, rows));
    KVANT_RETURN_IF_ERROR(prompt.graph.Compute());
    logits.resize(rows * vocab_size);
    Get(result, logits);
    return OkStatus();
  };
  if (!prompt.options.all_logits) {
    KVANT_RETURN_IF_ERROR(run(prompt.size() - 1, 1));
  } else {
    KVANT_RETURN_IF_ERROR(prompt.ForEachChunk([&](uint32_t first, uint32_t rows) {
      KVANT_RETURN_IF_ERROR(run(first, rows));
      prompt.options.all_logits(first, rows, logits);
      return OkStatus();
    }));
  }
  last_logits->assign(logits.end() - static_cast<ptrdiff_t>(vocab_size), logits.end());
  return OkStatus();
}

}  // namespace kvant::engine
