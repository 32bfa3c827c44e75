// kvant_model_divergence: what a file's weights alone cost, over an fp16 cache. Below that no precision of a cache is
// worth comparing.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "kvant/engine/tokenizer.h"
#include "support/oracle.h"
#include "support/our_logits.h"

namespace {

constexpr const char* kUsage =
    "kvant_model_divergence EXPECTED ACTUAL TEXT WINDOW PROMPT\n"
    "    KL(expected ‖ actual) of next-token distributions after tokens PROMPT … WINDOW - 1 of the text\n";

bool ParseCount(const std::string& text, size_t* count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  return error == std::errc() && end == text.data() + text.size();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int Run(const std::vector<std::string>& arguments) {
  size_t window = 0;
  size_t prompt = 0;
  if (arguments.size() != 5 || !ParseCount(arguments[3], &window) || !ParseCount(arguments[4], &prompt) ||
      prompt >= window) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const auto expected = kvant::test::LoadedModel::Load(arguments[0]);
  const auto actual = kvant::test::LoadedModel::Load(arguments[1]);
  if (expected == nullptr || actual == nullptr) {
    return 1;
  }
  const auto tokenizer = kvant::engine::Tokenizer::Load(expected->model->path(), expected->model->info());
  auto tokens = (*tokenizer)->Encode(ReadFile(arguments[2]), false);
  if (!tokens.ok() || tokens->size() < window) {
    std::fputs("the text has fewer tokens than the window\n", stderr);
    return 1;
  }
  tokens->resize(window);
  constexpr uint32_t kChunkTokens = 512;
  const auto scored = std::span<const int32_t>(*tokens).subspan(prompt);
  const kvant::test::Divergence divergence = kvant::test::Compare(
      kvant::test::OurLogits(*expected, *tokens, kChunkTokens, prompt),
      kvant::test::OurLogits(*actual, *tokens, kChunkTokens, prompt), scored, 0, expected->model->params().vocab_size);
  std::printf("kl %.6f perplexity %.4f %.4f\n", divergence.mean_kl, divergence.perplexity_expected,
              divergence.perplexity_actual);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Run({argv + 1, argv + argc}); }
