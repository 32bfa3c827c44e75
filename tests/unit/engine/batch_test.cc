// Answers that are decoded together: each is what it would be alone, whoever is longer, and whoever ends first.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "unit/engine/decode_fixture.h"

namespace kvant::test {
namespace {

struct Request {
  size_t prompt_tokens;
  size_t max_tokens;
};
constexpr Request kRequests[] = {{400, 4}, {50, 160}, {120, 90}, {7, 170}};
constexpr int kShuffles = 20;

class BatchTest : public DecodeFixture {
 protected:
  struct Running {
    size_t request;
    cache::Sequence sequence;
    std::vector<float> logits;
    std::vector<int32_t> answer;
  };

  static std::vector<int32_t> PromptOf(size_t request) { return SomeTokens(kRequests[request].prompt_tokens, request); }

  std::vector<std::vector<int32_t>> Alone(const std::string& word) {
    std::vector<std::vector<int32_t>> answers;
    for (size_t request = 0; request < std::size(kRequests); ++request) {
      answers.push_back(Greedy(word, PromptOf(request), kRequests[request].max_tokens));
    }
    return answers;
  }

  std::vector<std::vector<int32_t>> Together(const std::string& word, std::span<const size_t> order) {
    std::vector<Running> running;
    for (const size_t request : order) {
      std::vector<float> logits;
      cache::Sequence sequence = Prefilled(word, PromptOf(request), &logits);
      running.push_back({request, std::move(sequence), std::move(logits), {}});
    }
    std::vector<std::vector<int32_t>> answers(std::size(kRequests));
    while (!running.empty()) {
      StepAll(running);
      std::erase_if(running, [&](Running& each) {
        const bool ended = each.answer.size() == kRequests[each.request].max_tokens;
        if (ended) {
          answers[each.request] = std::move(each.answer);
        }
        return ended;
      });
    }
    return answers;
  }

  void StepAll(std::vector<Running>& running) {
    std::vector<engine::DecodeItem> items;
    for (Running& each : running) {
      each.answer.push_back(Likeliest(each.logits));
      items.push_back({&each.sequence, each.answer.back()});
    }
    std::vector<float> logits;
    Step(items, &logits);
    const size_t vocab_size = logits.size() / items.size();
    for (size_t i = 0; i < running.size(); ++i) {
      const auto row = logits.begin() + static_cast<ptrdiff_t>(i * vocab_size);
      running[i].logits.assign(row, row + static_cast<ptrdiff_t>(vocab_size));
    }
  }
};

TEST_F(BatchTest, EveryAnswerIsTheOneGivenAlone) {
  std::mt19937 random(5);
  for (const char* word : kEveryKind) {
    const bool often = std::string(word) == "int8" || std::string(word) == "int4";
    const std::vector<std::vector<int32_t>> alone = Alone(word);
    for (const std::vector<int32_t>& answer : alone) {
      ASSERT_NE(std::count(answer.begin(), answer.end(), answer.front()), std::ssize(answer)) << "says one word";
    }
    std::vector<size_t> order(std::size(kRequests));
    std::iota(order.begin(), order.end(), size_t{0});
    for (int shuffle = 0; shuffle < (often ? kShuffles : 3); ++shuffle) {
      EXPECT_EQ(Together(word, order), alone) << word << ", shuffle " << shuffle;
      if (shuffle < 3) {
        std::rotate(order.begin(), order.begin() + 1, order.end());  // the longest prompt first, last, in the middle
      } else {
        std::shuffle(order.begin(), order.end(), random);
      }
    }
  }
}

}  // namespace
}  // namespace kvant::test
