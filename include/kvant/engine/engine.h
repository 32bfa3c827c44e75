#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/cache/sequence.h"
#include "kvant/engine/backend.h"
#include "kvant/engine/model.h"
#include "kvant/policy/pair_statistics.h"

namespace kvant::engine {

struct Profile;

/// What is measured of a prompt's attention on the way (methods.md 3.12; design.md decision 2).
enum class PromptStatistics : uint8_t {
  kNone,
  kMass,         ///< the attention that every token is paid by all the prompt's queries: a second pass over the keys
  kSampledMass,  ///< the same of every 8th block of 16 queries, and of the last one
  kPairs,        ///< what the queries say of the RoPE pairs that they meet keys in
};

/// What was measured of a layer.
struct LayerStatistics {
  bool last_layer = false;
  /// Attention mass, summed over a KV head's query heads; empty unless wanted.
  /// Shapes  [num_kv_heads][tokens of the sequence]
  std::vector<std::vector<float>> mass;
  /// Of all the prompt's queries, without keys; empty unless wanted. Shapes  [num_kv_heads]
  std::vector<policy::PairStatistics> pairs;
};

/// What happens to a layer's keys and values when the whole prompt has passed through that layer.
class LayerConsumer {
 public:
  virtual ~LayerConsumer() = default;
  virtual PromptStatistics wanted() const { return PromptStatistics::kNone; }
  /// `cache` holds the prompt's tokens of layer `layer` at fp16 (and whatever was stored before the prompt). It stays
  /// where it is until the prompt has passed the last layer.
  virtual Status LayerDone(uint32_t layer, cache::LayerCache& cache, const LayerStatistics& statistics) = 0;
};

/// What attention of a prompt reads.
enum class PromptAttention : uint8_t {
  kExact,      ///< fp16 keys and values of the prompt, encoded only afterwards (both papers)
  kQuantized,  ///< the consumer's result: every query, the diagonal included, meets encoded keys (evaluation)
};

struct PrefillOptions {
  uint32_t chunk_tokens = 512;
  PromptAttention attention = PromptAttention::kExact;
  /// Called after each layer with the number of layers done.
  std::function<void(uint32_t layers_done)> progress;
  /// Called with the logits of consecutive prompt tokens, [rows, vocab_size], first row's prompt index first.
  /// Where absent, only the last token's logits are computed.
  std::function<void(uint32_t first, uint32_t rows, std::span<const float> logits)> all_logits;
  /// Called with every layer's queries of consecutive prompt tokens as attention meets them, after RoPE:
  /// [rows, num_q_heads, head_dim], first row's prompt index first.
  std::function<void(uint32_t layer, uint32_t first, uint32_t rows, std::span<const float> queries)> queries;
  /// Asked between steps; true ends the prefill with kCancelled.
  std::function<bool()> cancelled;
};

/// By layer, KV head and token.
using AttentionMass = std::vector<std::vector<std::vector<float>>>;

struct DecodeItem {
  cache::Sequence* sequence = nullptr;
  int32_t token = 0;
};

/// Runs a model over compressed caches.
///
/// Threads  one caller at a time; sequences are the caller's
class Engine {
 public:
  /// `context_tokens`: what a sequence may hold; 0 is what the model is meant for. It decides which factors a model
  /// with LongRoPE turns its keys by, and only there a longer sequence is refused.
  Engine(const Model* model, Backend* backend, uint32_t context_tokens = 0);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const { return *model_; }
  Backend& backend() { return *backend_; }
  uint32_t context_tokens() const { return context_tokens_; }

  /// The model's maps for sequences of the profile's precision; they take the place of earlier ones for it.
  /// Requires a profile of this model (LoadProfile says so)
  void UseProfile(std::shared_ptr<const Profile> profile);
  /// Null where there is none.
  const Profile* FindProfile(const codec::Precision& precision) const;

  /// Errors  kNotFound: a precision with maps of the model, and no profile of it
  Result<cache::Sequence> NewSequence(const codec::Precision& precision, cache::MemoryAccount* account) const;

  /// Run a prompt layer by layer: all chunks of a layer, then consumer.LayerDone, then the next layer. So the peak is
  /// what the consumer keeps, one layer at fp16, and the prompt's hidden states.
  ///
  /// Requires tokens not empty. The sequence may hold tokens already: the prompt goes on after them
  /// Shapes   last_logits [vocab_size], of the last token
  /// Errors   kInvalidArgument: a token outside the vocabulary; CheckPrecision's; kNumeric with layer and position;
  /// kCapacityExceeded
  ///          (memory, or a length that LongRoPE's factors were not chosen for); kCancelled; what the consumer returns.
  ///          After an error the sequence is to be dropped
  Status Prefill(cache::Sequence& sequence, std::span<const int32_t> tokens, LayerConsumer& consumer,
                 const PrefillOptions& options, std::vector<float>* last_logits);

  /// One token more of each sequence. Nothing is encoded here: call sequence.EncodeDue afterwards.
  ///
  /// Shapes   logits [items.size(), vocab_size]; mass [num_layers][num_kv_heads][tokens of the sequence], the attention
  ///          that the token pays each, where not null: of one item, at the cost of a second pass over its keys
  /// Errors   as Prefill; the sequences are then as before where the error came before computing, else to be dropped
  Status Decode(std::span<const DecodeItem> items, std::vector<float>* logits, AttentionMass* mass = nullptr);

 private:
  struct Prompt;
  struct DecodeGraph;

  Status CheckTokens(std::span<const int32_t> tokens) const;
  Status CheckLength(uint64_t tokens) const;
  Status EmbedPrompt(Prompt& prompt);
  Status RunLayer(Prompt& prompt, uint32_t layer);
  Status RunExactChunk(Prompt& prompt, uint32_t layer, uint32_t first, uint32_t rows);
  Status RunInputsChunk(Prompt& prompt, uint32_t layer, uint32_t first, uint32_t rows);
  Status RunAttendChunk(Prompt& prompt, uint32_t layer, uint32_t first, uint32_t rows);
  Status RunLogits(Prompt& prompt, std::vector<float>* last_logits);
  Status BuildDecodeGraph(uint32_t rows);

  const Model* model_;
  Backend* backend_;
  uint32_t context_tokens_;
  std::vector<std::shared_ptr<const Profile>> profiles_;
  std::unique_ptr<DecodeGraph> decode_;
};

}  // namespace kvant::engine
