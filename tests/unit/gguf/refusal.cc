#include "unit/gguf/refusal.h"

#include <map>

#include "kvant/engine/gguf_check.h"
#include "support/gguf_fixture.h"

namespace kvant::engine {
namespace {

std::string ByteToken(int byte) {
  constexpr const char* kHex = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">";
}

}  // namespace

test::GgufImage SmallImage(const std::string& architecture) {
  static std::map<std::string, test::GgufImage> images;
  if (const auto found = images.find(architecture); found != images.end()) {
    return found->second;
  }
  const test::TempFile file("small.gguf");
  test::TinyModelParams params{.architecture = architecture,
                               .num_layers = 1,
                               .num_q_heads = 2,
                               .num_kv_heads = 1,
                               .head_dim = 32,
                               .feed_forward = 64,
                               .vocab_size = 270,
                               .context_length = 64};
  params.scaling = architecture == "phi3" ? test::TinyScaling::kLongRope : test::TinyScaling::kNone;
  if (architecture.starts_with("gemma")) {
    params.window = 16;
    params.window_pattern = 2;
    params.window_base = 5000.0F;
    params.attention_cap = architecture == "gemma2" ? 40.0F : 0.0F;
    params.output_cap = 20.0F;
  }
  const Status status = test::WriteTinyModel(params, file.path());
  EXPECT_TRUE(status.ok()) << status.message();
  return images.emplace(architecture, test::GgufImage::Read(file.path())).first->second;
}

test::GgufImage SentencePieceImage() {
  test::GgufImage image = SmallImage();
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(ByteToken(byte));
    types.push_back(6);
  }
  for (const char* piece : {"\xE2\x96\x81", "a", "b", "ab",
                            "\xE2\x96\x81"
                            "a",
                            "c", "d", "e", "f", "g", "h"}) {
    tokens.emplace_back(piece);
    types.push_back(1);
  }
  image.SetText("tokenizer.ggml.model", "llama");
  image.Remove("tokenizer.ggml.pre");
  image.Remove("tokenizer.ggml.merges");
  image.Remove("tokenizer.ggml.eot_token_id");
  image.SetTexts("tokenizer.ggml.tokens", tokens);
  image.SetI32s("tokenizer.ggml.token_type", types);
  image.SetF32s("tokenizer.ggml.scores", std::vector<float>(tokens.size(), -1.0F));
  image.SetU32("tokenizer.ggml.bos_token_id", 1);
  image.SetU32("tokenizer.ggml.eos_token_id", 2);
  return image;
}

Status CheckImage(const test::GgufImage& image) {
  const test::TempFile file("image.gguf");
  file.Write(image.Bytes());
  return CheckGguf(file.path()).status();
}

void ExpectRefused(const Refusal& refusal) {
  test::GgufImage image = SmallImage(refusal.architecture);
  ASSERT_TRUE(CheckImage(image).ok()) << CheckImage(image).message();
  refusal.damage(image);
  const Status status = CheckImage(image);
  EXPECT_EQ(StatusCodeName(status.code()), StatusCodeName(refusal.code)) << status.message();
  EXPECT_NE(status.message().find(refusal.message), std::string::npos) << status.message();
}

}  // namespace kvant::engine
