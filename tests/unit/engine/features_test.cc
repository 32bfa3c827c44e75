// Tiny random models against libllama: each feature is right, and each one switched off would be noticed.
#include <gtest/gtest.h>

#include "support/tiny_oracle.h"

namespace kvant::test {
namespace {

double KlAgainstOracle(const std::string& oracle_model, const std::string& our_model) {
  auto loaded = LoadedModel::Load(our_model);
  if (loaded == nullptr) {
    return -1;
  }
  const uint32_t vocab_size = loaded->model->params().vocab_size;
  const std::vector<int32_t> tokens = RandomTokens(vocab_size);
  return Compare(OracleLogits(oracle_model, tokens, {}), OurLogits(*loaded, tokens, 64), tokens, 0, vocab_size).mean_kl;
}

// Rows of W_q and W_k in the order of the other layout: channel 2j + s of a head goes to s · dims/2 + j.
Status SwapRopeLayout(const std::string& in, const std::string& out, size_t head_dim) {
  return WriteF32Model(in, out, [head_dim](std::string_view name, std::span<float> values, size_t columns) {
    if (!name.ends_with("attn_q.weight") && !name.ends_with("attn_k.weight")) {
      return;
    }
    const std::vector<float> old(values.begin(), values.end());
    for (size_t row = 0; row < values.size() / columns; ++row) {
      const size_t channel = row % head_dim;
      const size_t target = row - channel + channel % 2 * (head_dim / 2) + channel / 2;
      std::copy_n(old.begin() + static_cast<ptrdiff_t>(row * columns), columns,
                  values.begin() + static_cast<ptrdiff_t>(target * columns));
    }
  });
}

TEST(Features, TinyModelsHaveLowEntropy) {
  const TempDir folder;
  const std::string path = WriteTiny(folder, "base.gguf", {});
  ASSERT_NE(LoadedModel::Load(path), nullptr);  // libllama runs on the backend that this loads
  double attention = 0;
  const auto logits =
      OracleLogits(path, RandomTokens(300), {.flash_attention = false, .attention_entropy = &attention});
  const double output = RelativeEntropy(logits, 300);
  std::printf("entropy of attention rows %.3f and of outputs %.3f of the uniform one\n", attention, output);
  EXPECT_LT(attention, 0.5);
  EXPECT_LT(output, 0.5);
}

struct Feature {
  const char* name;
  TinyModelParams with;
  TinyModelParams without;
};

class FeatureTest : public testing::TestWithParam<Feature> {};

TEST_P(FeatureTest, AgreesAndWouldBeMissed) {
  const TempDir folder;
  const std::string with = WriteTiny(folder, "with.gguf", GetParam().with);
  const std::string without = WriteTiny(folder, "without.gguf", GetParam().without);
  const double right = KlAgainstOracle(with, with);
  const double wrong = KlAgainstOracle(with, without);
  std::printf("%s: KL %.3g, switched off %.3g\n", GetParam().name, right, wrong);
  EXPECT_LE(right, kOracleBound);
  EXPECT_GT(wrong, 100 * kOracleBound);
}

INSTANTIATE_TEST_SUITE_P(All, FeatureTest,
                         testing::Values(Feature{"linear_scaling", {.scaling = TinyScaling::kLinear}, {}},
                                         Feature{"yarn", {.scaling = TinyScaling::kYarn}, {}},
                                         Feature{"llama3_scaling", {.scaling = TinyScaling::kLlama3}, {}},
                                         Feature{"untied_embeddings", {.tied_embeddings = false}, {}},
                                         Feature{"grouped_queries_9_3",
                                                 {.num_q_heads = 9, .num_kv_heads = 3},
                                                 {.num_q_heads = 9, .num_kv_heads = 3, .seed = 2}}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Features, RopeLayoutWouldBeMissed) {
  const TempDir folder;
  const std::string path = WriteTiny(folder, "norm.gguf", {});
  const std::string swapped = folder.File("halves.gguf");
  ASSERT_TRUE(SwapRopeLayout(path, swapped, 32).ok());
  const double right = KlAgainstOracle(path, path);
  const double wrong = KlAgainstOracle(path, swapped);
  std::printf("rope layout: KL %.3g, other layout %.3g\n", right, wrong);
  EXPECT_LE(right, kOracleBound);
  EXPECT_GT(wrong, 100 * kOracleBound);
}

class HeadDimTest : public testing::TestWithParam<uint32_t> {};

TEST_P(HeadDimTest, AgreesWithOracle) {
  const TempDir folder;
  const std::string path = WriteTiny(folder, "model.gguf", {.head_dim = GetParam()});
  EXPECT_LE(KlAgainstOracle(path, path), kOracleBound);
}

INSTANTIATE_TEST_SUITE_P(All, HeadDimTest, testing::Values(40U, 48U, 64U, 80U, 96U, 100U, 128U, 256U));

}  // namespace
}  // namespace kvant::test
