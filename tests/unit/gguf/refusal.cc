#include "unit/gguf/refusal.h"

#include "kvant/engine/gguf_check.h"
#include "support/gguf_fixture.h"

namespace kvant::engine {

test::GgufImage SmallImage() {
  static const test::GgufImage image = [] {
    const test::TempFile file("small.gguf");
    const Status status = test::WriteTinyModel({.num_layers = 1,
                                                .num_q_heads = 2,
                                                .num_kv_heads = 1,
                                                .head_dim = 32,
                                                .feed_forward = 64,
                                                .vocab_size = 270,
                                                .context_length = 64},
                                               file.path());
    EXPECT_TRUE(status.ok()) << status.message();
    return test::GgufImage::Read(file.path());
  }();
  return image;
}

Status CheckImage(const test::GgufImage& image) {
  const test::TempFile file("image.gguf");
  file.Write(image.Bytes());
  return CheckGguf(file.path()).status();
}

void ExpectRefused(const Refusal& refusal) {
  test::GgufImage image = SmallImage();
  ASSERT_TRUE(CheckImage(image).ok()) << CheckImage(image).message();
  refusal.damage(image);
  const Status status = CheckImage(image);
  EXPECT_EQ(StatusCodeName(status.code()), StatusCodeName(refusal.code)) << status.message();
  EXPECT_NE(status.message().find(refusal.message), std::string::npos) << status.message();
}

}  // namespace kvant::engine
