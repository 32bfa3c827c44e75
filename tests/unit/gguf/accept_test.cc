// What a sound file yields.
#include <gtest/gtest.h>

#include "kvant/engine/gguf_check.h"
#include "support/gguf_fixture.h"
#include "support/gguf_image.h"
#include "support/tiny_tokenizer.h"

namespace kvant::engine {
namespace {

using test::TinyModelParams;
using test::TinyScaling;

GgufInfo CheckTiny(const TinyModelParams& params) {
  const test::TempFile file("tiny");
  const Status written = test::WriteTinyModel(params, file.path());
  EXPECT_TRUE(written.ok()) << written.message();
  Result<GgufInfo> info = CheckGguf(file.path());
  EXPECT_TRUE(info.ok()) << info.status().message();
  return info.ok() ? *info : GgufInfo{};
}

TEST(GgufInfoTest, HoldsWhatTheEngineNeeds) {
  const GgufInfo info = CheckTiny({.num_layers = 3, .context_length = 2048});
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.name, "tiny");
  EXPECT_EQ(info.weight_type, "f32");
  EXPECT_EQ(info.num_tensors, 3U * 9 + 2);
  EXPECT_EQ(info.data_offset % 32, 0U);
  EXPECT_EQ(info.params.num_layers, 3U);
  EXPECT_EQ(info.params.embedding, 128U);
  EXPECT_EQ(info.params.feed_forward, 192U);
  EXPECT_EQ(info.params.num_q_heads, 4U);
  EXPECT_EQ(info.params.num_kv_heads, 2U);
  EXPECT_EQ(info.params.head_dim, 32U);
  EXPECT_EQ(info.params.context_length, 2048U);
  EXPECT_EQ(info.params.vocab_size, 300U);
  EXPECT_EQ(info.params.rms_epsilon, 1e-5F);
  EXPECT_TRUE(info.params.tied_embeddings);
  EXPECT_EQ(info.params.rope.layout, RopeLayout::kInterleaved);
  EXPECT_EQ(info.params.rope.dims, 32U);
  EXPECT_EQ(info.params.rope.base, 10000.0F);
  EXPECT_EQ(info.params.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(info.params.rope.factor, 1.0F);
  EXPECT_EQ(info.params.rope.original_context, 2048U);
  EXPECT_FALSE(info.params.rope.has_freq_factors);
  EXPECT_EQ(info.tokenizer.model, "gpt2");
  EXPECT_EQ(info.tokenizer.pre, "smollm");
  EXPECT_EQ(info.tokenizer.bos, static_cast<int32_t>(test::kTinyImStart));
  EXPECT_EQ(info.tokenizer.eos, static_cast<int32_t>(test::kTinyEos));
  EXPECT_EQ(info.tokenizer.eot, static_cast<int32_t>(test::kTinyImEnd));
  EXPECT_FALSE(info.tokenizer.add_bos);
  EXPECT_NE(info.tokenizer.chat_template.find("<|im_start|>"), std::string::npos);
}

TEST(GgufInfoTest, EveryShapeOfTheFixturesPasses) {
  for (const uint32_t head_dim : {32U, 40U, 48U, 64U, 80U, 96U, 100U, 128U, 256U}) {
    EXPECT_EQ(CheckTiny({.head_dim = head_dim}).params.head_dim, head_dim);
  }
  struct Heads {
    uint32_t query, kv;
  };
  for (const Heads heads : {Heads{8, 1}, Heads{4, 4}, Heads{9, 3}, Heads{12, 4}, Heads{1, 1}}) {
    const GgufInfo info = CheckTiny({.num_q_heads = heads.query, .num_kv_heads = heads.kv});
    EXPECT_EQ(info.params.num_q_heads, heads.query);
    EXPECT_EQ(info.params.num_kv_heads, heads.kv);
  }
}

TEST(GgufInfoTest, FiveOverTwoHeadsAreRefused) {
  const test::TempFile file("five");
  ASSERT_TRUE(test::WriteTinyModel({.num_q_heads = 5, .num_kv_heads = 2}, file.path()).ok());
  const Status status = CheckGguf(file.path()).status();
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_NE(status.message().find("2 KV heads do not divide 5 query heads"), std::string::npos) << status.message();
}

TEST(GgufInfoTest, EveryScalingIsTold) {
  const GgufInfo linear = CheckTiny({.scaling = TinyScaling::kLinear, .scaling_factor = 8.0F});
  EXPECT_EQ(linear.params.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.params.rope.factor, 8.0F);
  const GgufInfo yarn = CheckTiny({.scaling = TinyScaling::kYarn});
  EXPECT_EQ(yarn.params.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.params.rope.factor, 4.0F);
  EXPECT_EQ(yarn.params.rope.original_context, 128U);
  EXPECT_EQ(yarn.params.rope.attn_factor, 1.0F);
  const GgufInfo llama3 = CheckTiny({.scaling = TinyScaling::kLlama3});
  EXPECT_EQ(llama3.params.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(llama3.params.rope.has_freq_factors);
}

TEST(GgufInfoTest, AnOutputMatrixUntiesTheEmbedding) {
  EXPECT_FALSE(CheckTiny({.tied_embeddings = false}).params.tied_embeddings);
}

TEST(GgufInfoTest, TheFingerprintIsOfTheHeader) {
  const GgufInfo one = CheckTiny({.seed = 1});
  EXPECT_EQ(one.fingerprint, CheckTiny({.seed = 1}).fingerprint);
  EXPECT_EQ(one.fingerprint, CheckTiny({.seed = 2}).fingerprint);  // weights do not enter
  EXPECT_NE(one.fingerprint, CheckTiny({.context_length = 1024}).fingerprint);
}

TEST(GgufInfoTest, TheRealModelPasses) {
  const auto path = test::FindTestModel();
  if (!path) {
    GTEST_SKIP() << test::kNoTestModel;
  }
  const Result<GgufInfo> info = CheckGguf(*path);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->params.num_layers, 30U);
  EXPECT_EQ(info->params.num_q_heads, 9U);
  EXPECT_EQ(info->params.num_kv_heads, 3U);
  EXPECT_EQ(info->params.head_dim, 64U);
  EXPECT_EQ(info->params.vocab_size, 49152U);
  EXPECT_EQ(info->weight_type, "q4_1");
  EXPECT_EQ(info->tokenizer.pre, "smollm");
  EXPECT_EQ(info->tokenizer.bos, 1);
  EXPECT_EQ(info->tokenizer.eos, 2);
}

}  // namespace
}  // namespace kvant::engine
