// Whatever the validator lets through, libllama loads, tokenizes with and decodes, and means the same by it.
#include <gtest/gtest.h>
#include <llama.h>

#include <memory>

#include "engine/gguf/gguf_tokenizer.h"
#include "kvant/engine/gguf_check.h"
#include "support/gguf_fixture.h"
#include "unit/gguf/llama_child.h"
#include "unit/gguf/mutants.h"
#include "unit/gguf/refusal.h"

namespace kvant::engine {
namespace {

using test::GgufImage;
using test::TinyScaling;

constexpr size_t kAcceptedMutants = 400;  // of llama; of the others each a fourth

// Builds without NDEBUG let ggml assert that the numbers it computes are finite; a file's weights may be anything.
bool IsAboutNumbers(const LlamaReport& report) {
  return report.words.find("ggml-cpu/") != std::string::npos && report.words.find("Assertio") != std::string::npos;
}

void ExpectAllLoaded(const std::vector<Mutant>& files) {
  const auto reports = LoadInChildren(files.size(), [&](size_t i) { return files[i].bytes; });
  ASSERT_EQ(reports.size(), files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    if (IsAboutNumbers(reports[i])) {
      continue;
    }
    EXPECT_EQ(static_cast<char>(reports[i].fate), static_cast<char>(LlamaFate::kLoaded))
        << files[i].what << ": " << reports[i].words;
  }
}

bool Accepted(const std::string& bytes) {
  const test::TempFile file("accepted");
  file.Write(bytes);
  return CheckGguf(file.path()).ok();
}

class MutantTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, MutantTest, testing::ValuesIn(kArchitectures),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(MutantTest, AcceptedMutantsLoad) {
  const MutantSource source = MutantSource::Make(GetParam());
  const size_t wanted = GetParam() == std::string("llama") ? kAcceptedMutants : kAcceptedMutants / 4;
  std::vector<Mutant> files;
  for (uint64_t seed = 1000000; files.size() < wanted; ++seed) {
    Mutant mutant = source.Random(seed);
    if (mutant.bytes != source.bytes && Accepted(mutant.bytes)) {
      files.push_back(std::move(mutant));
    }
  }
  ExpectAllLoaded(files);
}

TEST_P(MutantTest, AcceptedFieldValuesLoad) {
  const MutantSource source = MutantSource::Make(GetParam());
  std::vector<Mutant> files;
  for (const GgufImage::Field& field : source.fields) {
    for (const uint64_t value : kAwkwardValues) {
      Mutant mutant{field.name + " = " + std::to_string(value), source.WithField(field, value)};
      if (mutant.bytes != source.bytes && Accepted(mutant.bytes)) {
        files.push_back(std::move(mutant));
      }
    }
  }
  EXPECT_FALSE(files.empty());
  ExpectAllLoaded(files);
}

TEST(LlamaTest, EveryFixtureLoads) {
  std::vector<Mutant> files;
  const auto add = [&](const std::string& what, const test::TinyModelParams& params) {
    const test::TempFile file("fixture");
    ASSERT_TRUE(test::WriteTinyModel(params, file.path()).ok());
    ASSERT_TRUE(CheckGguf(file.path()).ok()) << what;
    files.push_back({what, GgufImage::Read(file.path()).Bytes()});
  };
  add("default", {});
  add("untied", {.tied_embeddings = false});
  add("linear", {.scaling = TinyScaling::kLinear});
  add("yarn", {.scaling = TinyScaling::kYarn});
  add("llama3", {.scaling = TinyScaling::kLlama3});
  add("vocabulary of 1000", {.vocab_size = 1000});
  add("smallest vocabulary", {.vocab_size = test::kMinTinyVocab});
  for (const uint32_t head_dim : {40U, 48U, 80U, 96U, 100U, 128U, 256U}) {
    add("head size " + std::to_string(head_dim), {.head_dim = head_dim});
  }
  add("8 over 1", {.num_q_heads = 8, .num_kv_heads = 1});
  add("4 over 4", {.num_q_heads = 4, .num_kv_heads = 4});
  add("9 over 3", {.num_q_heads = 9, .num_kv_heads = 3});
  for (const char* architecture : kArchitectures) {
    add(architecture, {.architecture = architecture});
  }
  add("qwen2 without biases", {.architecture = "qwen2", .qkv_bias = false});
  add("qwen3 with a head size", {.architecture = "qwen3", .embedding = 96});
  add("phi3 with factors", {.architecture = "phi3", .rope_dims = 24, .scaling = TinyScaling::kLongRope});
  add("gemma3 with windows", {.architecture = "gemma3", .num_layers = 7, .window = 64});
  add("gemma3 with named layers",
      {.architecture = "gemma3", .window = 64, .window_layers = std::vector{false, true}, .window_base = 500.0F});
  ExpectAllLoaded(files);
}

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

// Our word on a tokenizer against libllama's.
void ExpectSameTokenizer(const GgufImage& image, const std::string& what) {
  const test::TempFile file("tokenizer");
  file.Write(image.Bytes());
  const Result<GgufInfo> info = CheckGguf(file.path());
  ASSERT_TRUE(info.ok()) << what << ": " << info.status().message();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  const std::unique_ptr<llama_model, FreeModel> model(llama_model_load_from_file(file.path().c_str(), params));
  ASSERT_NE(model, nullptr) << what;
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  EXPECT_EQ(llama_vocab_get_add_bos(vocab), info->tokenizer.add_bos) << what;
  EXPECT_EQ(llama_vocab_get_add_eos(vocab), info->tokenizer.add_eos) << what;
  EXPECT_EQ(llama_vocab_bos(vocab), info->tokenizer.bos) << what;
  EXPECT_EQ(llama_vocab_eos(vocab), info->tokenizer.eos) << what;
  EXPECT_EQ(llama_vocab_eot(vocab), info->tokenizer.eot) << what;
  EXPECT_EQ(static_cast<uint32_t>(llama_vocab_n_tokens(vocab)), info->params.vocab_size) << what;
}

TEST(LlamaTest, PreTokenizersHaveTheSameDefaults) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  for (const PreTokenizer& pre : PreTokenizers()) {
    GgufImage image = SmallImage();
    image.Remove("tokenizer.ggml.add_bos_token");
    image.SetText("tokenizer.ggml.pre", std::string(pre.name));
    ExpectSameTokenizer(image, std::string(pre.name));
  }
}

TEST(LlamaTest, SentencePieceHasTheSameDefaults) {
  GgufImage image = SentencePieceImage();
  image.Remove("tokenizer.ggml.add_bos_token");
  ExpectSameTokenizer(image, "llama");
  ExpectAllLoaded({{"llama", image.Bytes()}});
}

}  // namespace
}  // namespace kvant::engine
