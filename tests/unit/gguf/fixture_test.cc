// The fixtures are what they say: reports F1 to F4.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>

#include "kvant/engine/gguf_check.h"
#include "support/gguf_fixture.h"
#include "support/gguf_image.h"

namespace kvant::engine {
namespace {

using test::GgufImage;

std::vector<float> Values(GgufImage& image, const std::string& name) {
  const GgufImage::Tensor& tensor = image.TensorAt(name);
  uint64_t count = 1;
  for (const uint64_t dim : tensor.shape) {
    count *= dim;
  }
  std::vector<float> values(count);
  std::memcpy(values.data(), image.data.data() + tensor.offset, count * sizeof(float));
  return values;
}

class OutlierTest : public testing::Test {
 protected:
  // Two query heads a KV head, head size 32, embedding 128.
  void SetUp() override {
    ASSERT_TRUE(test::WriteTinyModel({.num_layers = 3}, tiny_.path()).ok());
    plain_ = GgufImage::Read(tiny_.path());
  }

  GgufImage Make(const test::OutlierParams& params) {
    const test::TempFile file("outlier");
    const Status status = test::WriteOutlierModel(tiny_.path(), file.path(), params);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(CheckGguf(file.path()).ok());
    return GgufImage::Read(file.path());
  }

  // outlier / plain for each value of a tensor: `factor` where `chosen(row, column)`, 1 elsewhere.
  template <typename Chosen>
  void ExpectScaled(GgufImage& outlier, const std::string& name, float factor, const Chosen& chosen) {
    const std::vector<float> before = Values(plain_, name);
    const std::vector<float> after = Values(outlier, name);
    const uint64_t columns = plain_.TensorAt(name).shape[0];
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_EQ(after[i], before[i] * (chosen(i / columns, i % columns) ? factor : 1.0F)) << name << " " << i;
    }
  }

  const test::TempFile tiny_{"plain"};
  GgufImage plain_;
};

bool InPair(uint64_t channel, uint64_t head, uint64_t pair) { return channel / 2 == head * 16 + pair; }

TEST_F(OutlierTest, KeysOfOnePairGrowAndTheirQueriesShrink) {
  GgufImage outlier = Make({.scale = 64.0F, .kv_head = 1, .pair = 5});
  for (const char* layer : {"blk.0.", "blk.1.", "blk.2."}) {
    const std::string prefix = layer;
    ExpectScaled(outlier, prefix + "attn_k.weight", 64.0F, [](auto row, auto) { return InPair(row, 1, 5); });
    ExpectScaled(outlier, prefix + "attn_q.weight", 1.0F / 64.0F,
                 [](auto row, auto) { return InPair(row, 2, 5) || InPair(row, 3, 5); });
    ExpectScaled(outlier, prefix + "attn_v.weight", 1.0F, [](auto, auto) { return false; });
    ExpectScaled(outlier, prefix + "attn_output.weight", 1.0F, [](auto, auto) { return false; });
  }
  ExpectScaled(outlier, "token_embd.weight", 1.0F, [](auto, auto) { return false; });
}

TEST_F(OutlierTest, TheTwinGrowsValuesAndShrinksTheirOutputs) {
  GgufImage outlier = Make({.scale = 16.0F, .values = true});
  ExpectScaled(outlier, "blk.1.attn_v.weight", 16.0F, [](auto row, auto) { return InPair(row, 0, 0); });
  ExpectScaled(outlier, "blk.1.attn_output.weight", 1.0F / 16.0F,
               [](auto, auto column) { return InPair(column, 0, 0) || InPair(column, 1, 0); });
}

TEST_F(OutlierTest, OnlyTheChosenLayersChange) {
  const auto changed = [&](GgufImage& outlier) {
    std::string layers;
    for (const char* layer : {"0", "1", "2"}) {
      const std::string name = std::string("blk.") + layer + ".attn_k.weight";
      layers += Values(outlier, name) != Values(plain_, name) ? layer : "";
    }
    return layers;
  };
  GgufImage mid = Make({.layers = test::OutlierLayers::kMid});
  GgufImage ends = Make({.layers = test::OutlierLayers::kEnds});
  EXPECT_EQ(changed(mid), "1");
  EXPECT_EQ(changed(ends), "02");
}

TEST_F(OutlierTest, TheFingerprintTellsOutlierModelsApart) {
  const test::TempFile one("one");
  const test::TempFile two("two");
  ASSERT_TRUE(test::WriteOutlierModel(tiny_.path(), one.path(), {.scale = 4.0F}).ok());
  ASSERT_TRUE(test::WriteOutlierModel(tiny_.path(), two.path(), {.scale = 16.0F}).ok());
  EXPECT_NE(CheckGguf(one.path())->fingerprint, CheckGguf(two.path())->fingerprint);
  EXPECT_NE(CheckGguf(one.path())->fingerprint, CheckGguf(tiny_.path())->fingerprint);
}

TEST_F(OutlierTest, HeadsAndPairsThatAreNotThereAreRefused) {
  const test::TempFile file("none");
  EXPECT_EQ(test::WriteOutlierModel(tiny_.path(), file.path(), {.kv_head = 2}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(test::WriteOutlierModel(tiny_.path(), file.path(), {.pair = 16}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(test::WriteOutlierModel("/nonexistent", file.path(), {}).code(), StatusCode::kIoError);
}

TEST(F32CopyTest, AnF32ModelIsCopiedValueByValue) {
  const test::TempFile tiny("tiny");
  const test::TempFile copy("copy");
  ASSERT_TRUE(test::WriteTinyModel({.tied_embeddings = false}, tiny.path()).ok());
  ASSERT_TRUE(test::WriteF32Model(tiny.path(), copy.path()).ok());
  const GgufImage before = GgufImage::Read(tiny.path());
  const GgufImage after = GgufImage::Read(copy.path());
  EXPECT_EQ(after.data, before.data);
  EXPECT_EQ(after.values.size(), before.values.size());
  EXPECT_EQ(CheckGguf(copy.path())->tokenizer.chat_template, CheckGguf(tiny.path())->tokenizer.chat_template);
}

// q4_1: blocks of 32, fp16 scale and minimum, then nibbles: low halves first.
float Q41Value(const std::string& block, size_t index) {
  const auto half = [&](size_t at) {
    uint16_t bits = 0;
    std::memcpy(&bits, block.data() + at, sizeof(bits));
    const int exponent = bits >> 10 & 31;
    const float mantissa = static_cast<float>(bits & 1023) / 1024.0F + (exponent > 0 ? 1.0F : 0.0F);
    return (bits >> 15 != 0 ? -mantissa : mantissa) * std::ldexp(1.0F, std::max(exponent, 1) - 15);
  };
  const auto byte = static_cast<uint8_t>(block[4 + index % 16]);
  return half(0) * static_cast<float>(index < 16 ? byte & 15 : byte >> 4) + half(2);
}

TEST(F32CopyTest, TheRealModelIsDequantized) {
  const auto path = test::FindTestModel();
  if (!path) {
    GTEST_SKIP() << test::kNoTestModel;
  }
  const test::TempFile copy("real");
  ASSERT_TRUE(test::WriteF32Model(*path, copy.path()).ok());
  const Result<GgufInfo> info = CheckGguf(copy.path());
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->weight_type, "f32");
  GgufImage quantized = GgufImage::Read(*path);
  GgufImage plain = GgufImage::Read(copy.path());
  const std::string name = "blk.7.attn_k.weight";
  const std::vector<float> values = Values(plain, name);
  const size_t start = quantized.TensorAt(name).offset;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_FLOAT_EQ(values[i], Q41Value(quantized.data.substr(start + i / 32 * 20, 20), i % 32)) << i;
  }
}

}  // namespace
}  // namespace kvant::engine
