#include "support/oracle.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace kvant::test {
namespace {

std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) {
    sum += std::exp(x - largest);
  }
  std::vector<double> result(logits.size());
  std::transform(logits.begin(), logits.end(), result.begin(), [&](float x) { return x - largest - std::log(sum); });
  return result;
}

// Sums the entropy of softmax rows that libllama computes: [tokens seen (padded), queries, heads].
struct EntropyMeter {
  int64_t window = 0;
  double sum = 0;
  size_t rows = 0;

  static bool Observe(ggml_tensor* tensor, bool ask, void* self) {
    const bool wanted = std::string_view(tensor->name).starts_with("kq_soft_max");
    if (wanted && !ask) {
      static_cast<EntropyMeter*>(self)->Add(*tensor);
    }
    return wanted || !ask;
  }

  void Add(const ggml_tensor& tensor) {
    for (int64_t row = 0; row < tensor.ne[1] * tensor.ne[2]; ++row) {
      const auto* p = static_cast<const float*>(tensor.data) + row * tensor.ne[0];
      const int64_t seen = std::min(row % tensor.ne[1] + 1, window);
      if (seen < 32) {
        continue;
      }
      double entropy = 0;
      for (int64_t i = 0; i < tensor.ne[0]; ++i) {
        entropy -= p[i] > 0 ? p[i] * std::log(p[i]) : 0;
      }
      sum += entropy / std::log(static_cast<double>(seen));
      ++rows;
    }
  }
};

}  // namespace

double RelativeEntropy(std::span<const float> logits, size_t vocab_size) {
  double sum = 0;
  for (size_t row = 0; row < logits.size() / vocab_size; ++row) {
    for (const double log_p : LogSoftmax(logits.subspan(row * vocab_size, vocab_size))) {
      sum -= std::exp(log_p) * log_p;
    }
  }
  return sum / static_cast<double>(logits.size() / vocab_size) / std::log(static_cast<double>(vocab_size));
}

std::vector<float> OracleLogits(const std::string& model_path, std::span<const int32_t> tokens,
                                const OracleOptions& options) {
  llama_model* model = llama_model_load_from_file(model_path.c_str(), llama_model_default_params());
  if (model == nullptr) {
    ADD_FAILURE() << "libllama does not load " << model_path;
    return {};
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(tokens.size()) + 64;
  params.n_batch = options.batch_tokens;
  params.n_ubatch = options.batch_tokens;
  params.n_threads = options.num_threads;
  params.n_threads_batch = options.num_threads;
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  EntropyMeter meter{.window = options.window};
  if (options.attention_entropy != nullptr) {
    params.cb_eval = EntropyMeter::Observe;
    params.cb_eval_user_data = &meter;
  }
  llama_context* context = llama_init_from_model(model, params);
  const auto vocab_size = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  std::vector<float> logits;
  llama_batch batch = llama_batch_init(static_cast<int32_t>(options.batch_tokens), 0, 1);
  for (size_t first = 0; first < tokens.size(); first += options.batch_tokens) {
    const size_t count = std::min<size_t>(options.batch_tokens, tokens.size() - first);
    batch.n_tokens = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      batch.token[i] = tokens[first + i];
      batch.pos[i] = static_cast<llama_pos>(first + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    EXPECT_EQ(llama_decode(context, batch), 0);
    const float* rows = llama_get_logits(context);
    const size_t skipped = std::min(count, options.first_row - std::min(options.first_row, first));
    logits.insert(logits.end(), rows + skipped * vocab_size, rows + count * vocab_size);
  }
  if (options.attention_entropy != nullptr) {
    EXPECT_GT(meter.rows, 0U) << "libllama's softmax rows were not seen";
    *options.attention_entropy = meter.sum / static_cast<double>(meter.rows);
  }
  llama_batch_free(batch);
  llama_free(context);
  llama_model_free(model);
  return logits;
}

Divergence Compare(std::span<const float> expected, std::span<const float> actual, std::span<const int32_t> tokens,
                   size_t first, size_t vocab_size) {
  Divergence result;
  double nll_expected = 0;
  double nll_actual = 0;
  size_t scored = 0;
  for (size_t row = first; row < tokens.size(); ++row) {
    const std::vector<double> p = LogSoftmax(expected.subspan(row * vocab_size, vocab_size));
    const std::vector<double> q = LogSoftmax(actual.subspan(row * vocab_size, vocab_size));
    double kl = 0;
    for (size_t i = 0; i < vocab_size; ++i) {
      kl += std::exp(p[i]) * (p[i] - q[i]);
    }
    result.mean_kl += kl / static_cast<double>(tokens.size() - first);
    result.max_kl = std::max(result.max_kl, kl);
    if (row + 1 < tokens.size()) {
      nll_expected -= p[static_cast<size_t>(tokens[row + 1])];
      nll_actual -= q[static_cast<size_t>(tokens[row + 1])];
      ++scored;
    }
  }
  result.perplexity_expected = std::exp(nll_expected / static_cast<double>(scored));
  result.perplexity_actual = std::exp(nll_actual / static_cast<double>(scored));
  return result;
}

}  // namespace kvant::test
