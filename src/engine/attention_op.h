#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvant/cache/sequence.h"
#include "kvant/engine/backend.h"
#include "kvant/engine/engine.h"
#include "kvant/engine/model.h"

struct ggml_context;
struct ggml_tensor;

namespace kvant::engine {

struct Qkv {
  ggml_tensor* q;  ///< [head_dim, num_q_heads, rows], after RoPE
  ggml_tensor* k;  ///< [head_dim, num_kv_heads, rows], after RoPE
  ggml_tensor* v;  ///< [head_dim, num_kv_heads, rows]
};

/// New tokens of one sequence in a graph: rows [first_row, first_row + num_rows) of the batch.
struct BatchItem {
  cache::Sequence* sequence = nullptr;
  uint32_t first_row = 0;
  uint32_t num_rows = 0;
  uint32_t first_token = 0;  ///< index in the sequence, which is also the position
};

/// Attention over compressed caches as nodes of a ggml graph.
///
/// `Store` puts the new keys and values into the caches at fp16, `Attend` meets every cached token in the format it
/// lies in; where each sequence has one new token, `StoreAndAttend` is both in one node. One query of a sequence is
/// split over chunks of its tokens, and the thread that finishes the last chunk merges them in order; several queries
/// are split into blocks of rows. Neither split depends on the batch or on the threads, so a row's result does not,
/// either.
class AttentionOp {
 public:
  AttentionOp(Backend* backend, const ModelParams& params);

  /// Measure the attention mass of `num_layers` layers from `first_layer` on, from nothing; of the last block of
  /// `num_tokens` in any case.
  void BeginMass(PromptStatistics wanted, uint32_t num_tokens, uint32_t first_layer, uint32_t num_layers);
  bool measures_mass() const { return mass_wanted_ != PromptStatistics::kNone; }
  /// What came together in one of them since. Shapes  [num_kv_heads][num_tokens]; empty where nothing is wanted
  std::vector<std::vector<float>> TakeMass(uint32_t layer);

  /// Which rows the next Compute holds, and which layers.
  /// The items' caches have the new tokens' slots already (ExtendExact).
  void SetBatch(std::vector<BatchItem> items, uint32_t first_layer, uint32_t num_layers);

  /// Nodes of layer `layer`. q [head_dim, num_q_heads, rows], k and v [head_dim, num_kv_heads, rows], fp32, after RoPE.
  ggml_tensor* BuildStore(ggml_context* ctx, uint32_t layer, ggml_tensor* k, ggml_tensor* v);
  /// Result [head_dim · num_q_heads, rows] fp32. `after` is the store node it must come after, or null.
  ggml_tensor* BuildAttend(ggml_context* ctx, uint32_t layer, ggml_tensor* q, ggml_tensor* after);
  /// The same for items of one row each: one wait of all threads less.
  ggml_tensor* BuildStoreAndAttend(ggml_context* ctx, uint32_t layer, const Qkv& qkv);

 private:
  struct LayerOp {
    AttentionOp* op;
    uint32_t layer;
  };
  /// A chunk of one query's tokens, or a block of queries and all their tokens.
  struct Unit {
    uint32_t item;
    uint32_t kv_head;
    uint32_t first;  ///< chunk, or first row of the block in the item
    uint32_t count;  ///< 0 for a chunk, else rows
    uint32_t group;  ///< of the chunks that are merged together
  };
  /// The chunks of one (item, KV head).
  struct Group {
    uint32_t first_unit;
    uint32_t num_units;
    std::atomic<uint32_t> pending;  ///< back at num_units when the chunks are merged
  };

  struct ThreadState {
    kernels::AttendScratch scratch;
    std::vector<float> partials;
    std::vector<kernels::AttendPartial> views;
    std::vector<const float*> outs;
    std::vector<float> maxes;
    std::vector<float> sums;
    std::vector<float> log_sums;    ///< of a block's rows
    std::vector<float> block_mass;  ///< of one block, token by token of a slice
    /// [layers, num_kv_heads, mass_tokens_], in units of 2^-kMassBits: sums in any order agree
    std::vector<uint64_t> mass;
  };

  static void StoreNode(ggml_tensor* dst, int thread, int num_threads, void* layer_op);
  static void AttendNode(ggml_tensor* dst, int thread, int num_threads, void* layer_op);
  static void StoreAndAttendNode(ggml_tensor* dst, int thread, int num_threads, void* layer_op);

  void PlanItem(uint32_t index, uint32_t first_layer, uint32_t num_layers);
  void StoreHead(const BatchItem& item, uint32_t layer, uint32_t kv_head, const ggml_tensor* k, const ggml_tensor* v);
  Status TryStoreHead(const BatchItem& item, uint32_t layer, uint32_t kv_head, const ggml_tensor* k,
                      const ggml_tensor* v) const;
  void AttendUnits(uint32_t layer, int thread, int num_threads, bool store, ggml_tensor* dst);
  /// The next units, more the more are left; empty when there are none.
  std::span<const Unit> TakeUnits(uint32_t layer, int num_threads);
  /// `count` chunks of one query and KV head, from unit `index` on.
  void AttendChunkUnits(uint32_t layer, uint32_t index, uint32_t count, ggml_tensor* dst, ThreadState& state);
  void AttendBlockUnit(uint32_t layer, const Unit& unit, ggml_tensor* dst, ThreadState& state);
  kernels::AttendQueries QueriesOf(uint32_t layer, const ggml_tensor* q, const BatchItem& item, uint32_t kv_head,
                                   uint32_t first_row, uint32_t num_rows) const;
  bool MeasuresMass(const BatchItem& item, const Unit& unit) const;
  size_t MassAt(uint32_t layer, uint32_t kv_head) const {
    return (size_t{layer - mass_first_layer_} * params_.num_kv_heads + kv_head) * mass_tokens_;
  }
  void AddMass(const cache::LayerCache& cache, uint32_t layer, uint32_t kv_head, uint32_t num_chunks,
               kernels::RowAttention& rows, ThreadState& state) const;
  /// Merge state.views, one a chunk in order, into rows [first_row, first_row + num_rows) of the item.
  void Merge(const BatchItem& item, uint32_t kv_head, uint32_t first_row, uint32_t num_rows, ggml_tensor* dst,
             ThreadState& state) const;

  Backend* backend_;
  ModelParams params_;
  uint32_t q_heads_per_kv_head_;
  std::vector<LayerOp> layer_ops_;
  std::vector<BatchItem> items_;
  std::vector<int32_t> positions_;
  std::vector<Unit> units_;
  std::unique_ptr<Group[]> groups_;
  uint32_t max_groups_ = 0;
  std::vector<std::atomic<uint32_t>> next_unit_;  ///< of each layer
  std::vector<float> chunk_partials_;
  std::vector<ThreadState> threads_;
  PromptStatistics mass_wanted_ = PromptStatistics::kNone;
  uint32_t mass_tokens_ = 0;
  uint32_t mass_first_layer_ = 0;
};

}  // namespace kvant::engine
