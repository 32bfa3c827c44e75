#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvant::test {

struct OracleOptions {
  bool flash_attention = true;
  uint32_t batch_tokens = 512;
  int num_threads = 2;
  /// Where given, the mean entropy of attention rows (softmax over seen tokens, rows of at least 32), in units of the
  /// uniform row's. Needs flash_attention = false and one batch.
  double* attention_entropy = nullptr;
  /// Tokens that a row of a sliding-window layer sees; the uniform row of every layer then has no more.
  uint32_t window = UINT32_MAX;
  /// Rows before it are computed and not returned: large vocabularies make large matrices.
  size_t first_row = 0;
};

/// Logits [tokens - first_row, vocab_size] of libllama over its f16 cache. Fails the test when libllama cannot.
std::vector<float> OracleLogits(const std::string& model_path, std::span<const int32_t> tokens,
                                const OracleOptions& options);

struct Divergence {
  double mean_kl = 0;  ///< of next-token distributions, KL(expected ‖ actual)
  double max_kl = 0;
  double perplexity_expected = 0;
  double perplexity_actual = 0;
};

/// Compare rows [first, tokens) of two logit matrices; perplexity of the tokens that follow.
Divergence Compare(std::span<const float> expected, std::span<const float> actual, std::span<const int32_t> tokens,
                   size_t first, size_t vocab_size);

/// Mean entropy of the rows' distributions, in units of the uniform distribution's.
double RelativeEntropy(std::span<const float> logits, size_t vocab_size);

}  // namespace kvant::test
