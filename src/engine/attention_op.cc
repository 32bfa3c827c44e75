#include "engine/attention_op.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kvant/base/check.h"
#include "kvant/cache/attend_chunks.h"

namespace kvant::engine {
namespace {

constexpr uint32_t kBlockQueries = 16;  // of one unit when a sequence has several queries
constexpr uint32_t kStoreRows = 64;     // rounded to fp16 at once
constexpr uint32_t kSampledBlocks = 8;  // one of so many blocks of queries
constexpr int kMassBits = 40;           // a mass is below 2^24 queries times heads

// A partial of `rows` rows in memory laid out as out, max, sum.
size_t PartialFloats(uint32_t rows, uint32_t head_dim) { return size_t{rows} * (head_dim + 2); }

kernels::AttendPartial PartialAt(float* memory, uint32_t rows, uint32_t head_dim) {
  float* max = memory + size_t{rows} * head_dim;
  return {memory, max, max + rows};
}

const float* RowOf(const ggml_tensor* tensor, uint32_t head, uint32_t row) {
  const auto* bytes = static_cast<const char*>(tensor->data);
  return reinterpret_cast<const float*>(bytes + head * tensor->nb[1] + row * tensor->nb[2]);
}

Status NotFinite(const char* which, uint32_t layer, uint32_t position) {
  return {StatusCode::kNumeric, std::string("NaN, infinity or a value beyond fp16 in ") + which + " at layer " +
                                    std::to_string(layer) + ", position " + std::to_string(position)};
}

}  // namespace

AttentionOp::AttentionOp(Backend* backend, const ModelParams& params)
    : backend_(backend),
      params_(params),
      q_heads_per_kv_head_(params.num_q_heads / params.num_kv_heads),
      next_unit_(params.num_layers),
      threads_(static_cast<size_t>(backend->num_threads())) {
  for (uint32_t layer = 0; layer < params.num_layers; ++layer) {
    layer_ops_.push_back({this, layer});
  }
}

void AttentionOp::SetBatch(std::vector<BatchItem> items, uint32_t first_layer, uint32_t num_layers) {
  items_ = std::move(items);
  positions_.clear();
  for (const BatchItem& item : items_) {
    positions_.resize(std::max<size_t>(positions_.size(), item.first_row + item.num_rows));
    for (uint32_t i = 0; i < item.num_rows; ++i) {
      positions_[item.first_row + i] = static_cast<int32_t>(item.first_token + i);
    }
  }
  const auto num_groups = static_cast<uint32_t>(items_.size()) * params_.num_kv_heads;
  if (num_groups > max_groups_) {
    groups_ = std::make_unique<Group[]>(num_groups);
    max_groups_ = num_groups;
  }
  units_.clear();
  for (uint32_t index = 0; index < items_.size(); ++index) {
    PlanItem(index, first_layer, num_layers);
  }
  chunk_partials_.resize(
      std::max(chunk_partials_.size(), units_.size() * PartialFloats(q_heads_per_kv_head_, params_.head_dim)));
  std::fill(next_unit_.begin(), next_unit_.end(), 0);
}

// One plan for all layers: where a layer has fewer chunks than another, its last ones are empty.
void AttentionOp::PlanItem(uint32_t index, uint32_t first_layer, uint32_t num_layers) {
  const BatchItem& item = items_[index];
  uint32_t num_chunks = 0;
  for (uint32_t layer = first_layer; layer < first_layer + num_layers; ++layer) {
    num_chunks = std::max(num_chunks, item.sequence->layer(layer).num_chunks());
  }
  for (uint32_t kv_head = 0; kv_head < params_.num_kv_heads; ++kv_head) {
    const uint32_t group_index = index * params_.num_kv_heads + kv_head;
    if (item.num_rows > 1 || measures_mass()) {
      for (uint32_t row = 0; row < item.num_rows; row += kBlockQueries) {
        units_.push_back({index, kv_head, row, std::min(kBlockQueries, item.num_rows - row), 0});
      }
      continue;
    }
    Group& group = groups_[group_index];
    group.first_unit = static_cast<uint32_t>(units_.size());
    group.num_units = num_chunks;
    group.pending = num_chunks;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      units_.push_back({index, kv_head, chunk, 0, group_index});
    }
  }
}

ggml_tensor* AttentionOp::BuildStore(ggml_context* ctx, uint32_t layer, ggml_tensor* k, ggml_tensor* v) {
  ggml_tensor* args[] = {k, v};
  return ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, args, 2, StoreNode, GGML_N_TASKS_MAX, &layer_ops_[layer]);
}

ggml_tensor* AttentionOp::BuildAttend(ggml_context* ctx, uint32_t layer, ggml_tensor* q, ggml_tensor* after) {
  ggml_tensor* args[] = {q, after};
  return ggml_custom_4d(ctx, GGML_TYPE_F32, q->ne[0] * q->ne[1], q->ne[2], 1, 1, args, after == nullptr ? 1 : 2,
                        AttendNode, GGML_N_TASKS_MAX, &layer_ops_[layer]);
}

ggml_tensor* AttentionOp::BuildStoreAndAttend(ggml_context* ctx, uint32_t layer, const Qkv& qkv) {
  ggml_tensor* args[] = {qkv.q, qkv.k, qkv.v};
  return ggml_custom_4d(ctx, GGML_TYPE_F32, qkv.q->ne[0] * qkv.q->ne[1], qkv.q->ne[2], 1, 1, args, 3,
                        StoreAndAttendNode, GGML_N_TASKS_MAX, &layer_ops_[layer]);
}

void AttentionOp::StoreNode(ggml_tensor* dst, int thread, int num_threads, void* layer_op) {
  const auto [op, layer] = *static_cast<LayerOp*>(layer_op);
  const auto num_heads = static_cast<uint32_t>(op->items_.size()) * op->params_.num_kv_heads;
  for (auto index = static_cast<uint32_t>(thread); index < num_heads; index += static_cast<uint32_t>(num_threads)) {
    const BatchItem& item = op->items_[index / op->params_.num_kv_heads];
    op->StoreHead(item, layer, index % op->params_.num_kv_heads, dst->src[0], dst->src[1]);
  }
}

void AttentionOp::StoreHead(const BatchItem& item, uint32_t layer, uint32_t kv_head, const ggml_tensor* k,
                            const ggml_tensor* v) {
  Status status = TryStoreHead(item, layer, kv_head, k, v);
  if (!status.ok()) {
    backend_->Fail(std::move(status));
  }
}

Status AttentionOp::TryStoreHead(const BatchItem& item, uint32_t layer, uint32_t kv_head, const ggml_tensor* k,
                                 const ggml_tensor* v) const {
  const uint32_t head_dim = params_.head_dim;
  const kernels::RowKernels& rows = kernels::RowKernelsOf(backend_->isa());
  std::array<Half, kStoreRows * codec::kMaxHeadDim> keys;
  std::array<Half, kStoreRows * codec::kMaxHeadDim> values;
  for (uint32_t done = 0; done < item.num_rows; done += kStoreRows) {
    const uint32_t count = std::min(kStoreRows, item.num_rows - done);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = item.first_row + done + i;
      if (!rows.to_half(RowOf(k, kv_head, row), keys.data() + i * head_dim, head_dim)) {
        return NotFinite("K", layer, item.first_token + done + i);
      }
      if (!rows.to_half(RowOf(v, kv_head, row), values.data() + i * head_dim, head_dim)) {
        return NotFinite("V", layer, item.first_token + done + i);
      }
    }
    item.sequence->layer(layer).StoreExact(kv_head, item.first_token + done, count, keys.data(), values.data(),
                                           head_dim);
  }
  return OkStatus();
}

void AttentionOp::AttendNode(ggml_tensor* dst, int thread, int num_threads, void* layer_op) {
  const auto [op, layer] = *static_cast<LayerOp*>(layer_op);
  op->AttendUnits(layer, thread, num_threads, false, dst);
}

void AttentionOp::StoreAndAttendNode(ggml_tensor* dst, int thread, int num_threads, void* layer_op) {
  const auto [op, layer] = *static_cast<LayerOp*>(layer_op);
  op->AttendUnits(layer, thread, num_threads, true, dst);
}

void AttentionOp::AttendUnits(uint32_t layer, int thread, int num_threads, bool store, ggml_tensor* dst) {
  ThreadState& state = threads_[static_cast<size_t>(thread)];
  for (auto taken = TakeUnits(layer, num_threads); !taken.empty(); taken = TakeUnits(layer, num_threads)) {
    const auto first = static_cast<uint32_t>(taken.data() - units_.data());
    const uint32_t end = first + static_cast<uint32_t>(taken.size());
    for (uint32_t index = first; index < end;) {
      const Unit& unit = units_[index];
      if (unit.count > 0) {
        if (store) {
          StoreHead(items_[unit.item], layer, unit.kv_head, dst->src[1], dst->src[2]);  // the head's only unit
        }
        AttendBlockUnit(layer, unit, dst, state);
        ++index;
        continue;
      }
      const Group& group = groups_[unit.group];
      const uint32_t count = std::min(end, group.first_unit + group.num_units) - index;
      const uint32_t newest = items_[unit.item].sequence->layer(layer).num_chunks() - 1;  // the only one that holds it
      if (store && unit.first <= newest && newest < unit.first + count) {
        StoreHead(items_[unit.item], layer, unit.kv_head, dst->src[1], dst->src[2]);
      }
      AttendChunkUnits(layer, index, count, dst, state);
      index += count;
    }
  }
}

std::span<const AttentionOp::Unit> AttentionOp::TakeUnits(uint32_t layer, int num_threads) {
  std::atomic<uint32_t>& next_unit = next_unit_[layer];
  const auto num_units = static_cast<uint32_t>(units_.size());
  const auto threads = static_cast<uint32_t>(num_threads);
  uint32_t first = next_unit.load(std::memory_order_relaxed);
  uint32_t count = 0;
  do {
    const uint32_t left = num_units - std::min(first, num_units);
    count = std::min(left, std::max(1U, 2 * left / (3 * threads)));  // two thirds of an even share
  } while (count > 0 && !next_unit.compare_exchange_weak(first, first + count, std::memory_order_relaxed));
  return std::span(units_).subspan(count > 0 ? first : 0, count);
}

kernels::AttendQueries AttentionOp::QueriesOf(uint32_t layer, const ggml_tensor* q, const BatchItem& item,
                                              uint32_t kv_head, uint32_t first_row, uint32_t num_rows) const {
  kernels::AttendQueries queries;
  queries.data = RowOf(q, kv_head * q_heads_per_kv_head_, item.first_row + first_row);
  queries.query_stride = q->nb[2] / sizeof(float);
  queries.head_stride = q->nb[1] / sizeof(float);
  queries.num_queries = num_rows;
  queries.q_heads_per_kv_head = q_heads_per_kv_head_;
  queries.head_dim = params_.head_dim;
  queries.scale = params_.query_scale;
  queries.logit_cap = params_.attention_cap;
  queries.window = params_.windows[layer];
  queries.positions = std::span(positions_).subspan(item.first_row + first_row, num_rows);
  return queries;
}

void AttentionOp::AttendChunkUnits(uint32_t layer, uint32_t index, uint32_t count, ggml_tensor* dst,
                                   ThreadState& state) {
  const Unit& unit = units_[index];
  const BatchItem& item = items_[unit.item];
  const size_t partial_floats = PartialFloats(q_heads_per_kv_head_, params_.head_dim);
  const auto partial = [&](uint32_t of) {
    return PartialAt(chunk_partials_.data() + of * partial_floats, q_heads_per_kv_head_, params_.head_dim);
  };
  Group& group = groups_[unit.group];
  kernels::RowAttention rows(backend_->isa(), QueriesOf(layer, dst->src[0], item, unit.kv_head, 0, 1), state.scratch);
  cache::AttendChunks(item.sequence->layer(layer), unit.kv_head, unit.first, count, rows,
                      [&](uint32_t chunk) { return partial(group.first_unit + chunk); });
  if (group.pending.fetch_sub(count, std::memory_order_acq_rel) > count) {
    return;
  }
  group.pending.store(group.num_units, std::memory_order_relaxed);
  state.views.clear();
  for (uint32_t i = 0; i < group.num_units; ++i) {
    state.views.push_back(partial(group.first_unit + i));
  }
  Merge(item, unit.kv_head, 0, 1, dst, state);
}

void AttentionOp::AttendBlockUnit(uint32_t layer, const Unit& unit, ggml_tensor* dst, ThreadState& state) {
  const BatchItem& item = items_[unit.item];
  const cache::LayerCache& cache = item.sequence->layer(layer);
  const kernels::AttendQueries queries = QueriesOf(layer, dst->src[0], item, unit.kv_head, unit.first, unit.count);
  const size_t partial_floats = PartialFloats(queries.num_rows(), params_.head_dim);
  const uint32_t num_chunks = cache.num_chunks_before(static_cast<uint32_t>(queries.positions.back()) + 1);
  const auto first_position = static_cast<uint32_t>(queries.positions.front());
  const bool windowed = queries.window > 0 && first_position >= queries.window;
  const uint32_t first_chunk = windowed ? cache.first_chunk_of(first_position - queries.window + 1) : 0;
  state.partials.resize(std::max(state.partials.size(), partial_floats * (num_chunks - first_chunk)));
  state.views.clear();
  kernels::RowAttention rows(backend_->isa(), queries, state.scratch);
  cache::AttendChunks(cache, unit.kv_head, first_chunk, num_chunks - first_chunk, rows, [&](uint32_t chunk) {
    state.views.push_back(PartialAt(state.partials.data() + partial_floats * (chunk - first_chunk), queries.num_rows(),
                                    params_.head_dim));
    return state.views.back();
  });
  Merge(item, unit.kv_head, unit.first, unit.count, dst, state);
  if (MeasuresMass(item, unit)) {
    AddMass(cache, layer, unit.kv_head, num_chunks, rows, state);
  }
}

void AttentionOp::BeginMass(PromptStatistics wanted, uint32_t num_tokens, uint32_t first_layer, uint32_t num_layers) {
  mass_wanted_ = wanted;
  mass_tokens_ = num_tokens;
  mass_first_layer_ = first_layer;
  const size_t sums = wanted == PromptStatistics::kNone ? 0 : size_t{num_layers} * params_.num_kv_heads * num_tokens;
  for (ThreadState& state : threads_) {
    state.mass.assign(sums, 0);
  }
}

std::vector<std::vector<float>> AttentionOp::TakeMass(uint32_t layer) {
  std::vector<std::vector<float>> mass;
  for (uint32_t kv_head = 0; kv_head < params_.num_kv_heads && mass_wanted_ != PromptStatistics::kNone; ++kv_head) {
    std::vector<float>& row = mass.emplace_back(mass_tokens_);
    for (uint32_t t = 0; t < mass_tokens_; ++t) {
      uint64_t sum = 0;
      for (ThreadState& state : threads_) {
        sum += std::exchange(state.mass[MassAt(layer, kv_head) + t], 0);
      }
      row[t] = std::ldexp(static_cast<float>(sum), -kMassBits);
    }
  }
  return mass;
}

bool AttentionOp::MeasuresMass(const BatchItem& item, const Unit& unit) const {
  if (mass_wanted_ != PromptStatistics::kSampledMass) {
    return mass_wanted_ == PromptStatistics::kMass;
  }
  const uint32_t first = item.first_token + unit.first;
  return first / kBlockQueries % kSampledBlocks == 0 || first + unit.count == mass_tokens_;
}

// The second pass of a block: its rows' log-sums are known now.
void AttentionOp::AddMass(const cache::LayerCache& cache, uint32_t layer, uint32_t kv_head, uint32_t num_chunks,
                          kernels::RowAttention& rows, ThreadState& state) const {
  uint64_t* sums = state.mass.data() + MassAt(layer, kv_head);
  for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
    const cache::ChunkSlices slices = cache.Chunk(kv_head, chunk);
    for (const kernels::AttendSlice& slice : slices.span()) {
      if (slice.segment.pair != nullptr) {
        continue;  // of an earlier prompt: its tiers are given out
      }
      state.block_mass.assign(RoundUp(slice.num_tokens, codec::kTileTokens), 0.0F);
      rows.AddMass(slice, state.log_sums, state.block_mass);
      for (uint32_t t = 0; t < slice.num_tokens; ++t) {
        const uint32_t token = slice.first_token + t;
        const int32_t position = slice.segment.positions != nullptr
                                     ? slice.segment.positions[token]
                                     : slice.segment.first_position + static_cast<int32_t>(token);
        sums[position] += static_cast<uint64_t>(std::ldexp(state.block_mass[t], kMassBits));
      }
    }
  }
}

void AttentionOp::Merge(const BatchItem& item, uint32_t kv_head, uint32_t first_row, uint32_t num_rows,
                        ggml_tensor* dst, ThreadState& state) const {
  const uint32_t head_dim = params_.head_dim;
  state.log_sums.clear();
  for (uint32_t row = 0; row < num_rows * q_heads_per_kv_head_; ++row) {
    state.outs.clear();
    state.maxes.clear();
    state.sums.clear();
    for (const kernels::AttendPartial& partial : state.views) {
      state.outs.push_back(partial.out + size_t{row} * head_dim);
      state.maxes.push_back(partial.max[row]);
      state.sums.push_back(partial.sum[row]);
    }
    const uint32_t head = kv_head * q_heads_per_kv_head_ + row % q_heads_per_kv_head_;
    const uint32_t batch_row = item.first_row + first_row + row / q_heads_per_kv_head_;
    auto* out = reinterpret_cast<float*>(static_cast<char*>(dst->data) + batch_row * dst->nb[1]) + head * head_dim;
    state.log_sums.push_back(kernels::MergePartials(state.outs, state.maxes, state.sums, std::span(out, head_dim)));
  }
}

}  // namespace kvant::engine
