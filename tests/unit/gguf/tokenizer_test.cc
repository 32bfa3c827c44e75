// Faults of the tokenizer's arrays, texts and ids.
#include <gtest/gtest.h>

#include <cmath>

#include "kvant/engine/gguf_check.h"
#include "unit/gguf/refusal.h"

namespace kvant::engine {
namespace {

using test::GgufImage;
using enum StatusCode;

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kScores = "tokenizer.ggml.scores";

void ReplaceToken(GgufImage& image, size_t id, const std::string& text) {
  std::vector<std::string> tokens = image.Texts(kTokens);
  tokens[id] = text;
  image.SetTexts(kTokens, tokens);
}

void ReplaceType(GgufImage& image, size_t id, int32_t type) {
  std::vector<int32_t> types = image.I32s(kTypes);
  types[id] = type;
  image.SetI32s(kTypes, types);
}

void ReplaceMerge(GgufImage& image, const std::string& merge) {
  std::vector<std::string> merges = image.Texts(kMerges);
  merges[1] = merge;
  image.SetTexts(kMerges, merges);
}

const Refusal kRefusals[] = {
    {"no_tokens", [](GgufImage& i) { i.Remove(kTokens); }, kCorruption, "tokenizer.ggml.tokens: the key is missing"},
    {"tokens_empty", [](GgufImage& i) { i.SetTexts(kTokens, {}); }, kCorruption, "tokenizer.ggml.tokens: 0 tokens"},
    {"tokens_of_numbers",
     [](GgufImage& i) {
       i.SetI32s(kTokens, {1, 2});
     },
     kCorruption, "tokenizer.ggml.tokens: no array of str"},
    {"tokens_scalar", [](GgufImage& i) { i.SetText(kTokens, "a"); }, kCorruption,
     "tokenizer.ggml.tokens: no array of str"},
    {"token_twice", [](GgufImage& i) { ReplaceToken(i, 99, "a"); }, kCorruption,
     "('a') stands in the list twice (byte "},
    {"token_empty_name_taken",
     [](GgufImage& i) {
       ReplaceToken(i, 100, "");
       ReplaceToken(i, 269, "[EMPTY_100]");
     },
     kCorruption, "token 269 ('[EMPTY_100]') stands in the list twice"},
    {"token_nul", [](GgufImage& i) { ReplaceToken(i, 100, std::string("a\0b", 3)); }, kCorruption,
     "tokenizer.ggml.tokens: a token holds a NUL (byte "},
    {"token_utf8", [](GgufImage& i) { ReplaceToken(i, 100, "\xF7\xBF\xBF\xBF"); }, kCorruption,
     "tokenizer.ggml.tokens: a token is not valid UTF-8"},
    {"token_too_long", [](GgufImage& i) { ReplaceToken(i, 100, std::string(70000, 'x')); }, kCorruption,
     "tokenizer.ggml.tokens: a token of 70000 bytes"},
    {"fewer_tokens",
     [](GgufImage& i) {
       std::vector<std::string> tokens = i.Texts(kTokens);
       tokens.pop_back();
       i.SetTexts(kTokens, tokens);
     },
     kCorruption, "tokenizer.ggml.token_type: 270 entries for 269 tokens"},
    {"rows_other_than_tokens",
     [](GgufImage& i) {
       std::vector<std::string> tokens = i.Texts(kTokens);
       std::vector<int32_t> types = i.I32s(kTypes);
       tokens.emplace_back("one more");
       types.push_back(1);
       i.SetTexts(kTokens, tokens);
       i.SetI32s(kTypes, types);
       i.Remove("llama.vocab_size");
     },
     kCorruption, "tensor 'token_embd.weight': shape [64, 270], the hyper-parameters ask for [64, 271]"},
    {"no_types", [](GgufImage& i) { i.Remove(kTypes); }, kCorruption, "tokenizer.ggml.token_type: the key is missing"},
    {"types_of_floats", [](GgufImage& i) { i.SetF32s(kTypes, std::vector<float>(270)); }, kCorruption,
     "tokenizer.ggml.token_type: no array of i32"},
    {"type_7", [](GgufImage& i) { ReplaceType(i, 5, 7); }, kCorruption, "token 5 has unknown type 7"},
    {"type_negative", [](GgufImage& i) { ReplaceType(i, 5, -1); }, kCorruption, "token 5 has unknown type -1"},
    {"byte_type_on_text", [](GgufImage& i) { ReplaceType(i, 5, 6); }, kCorruption, "token 5 is a byte token"},
    {"scores_short",
     [](GgufImage& i) {
       i.SetF32s(kScores, {1, 2});
     },
     kCorruption, "tokenizer.ggml.scores: 2 entries for 270 tokens"},
    {"score_nan",
     [](GgufImage& i) {
       std::vector<float> scores(270, 0.0F);
       scores[7] = NAN;
       i.SetF32s(kScores, scores);
     },
     kCorruption, "the score of token 7 is not finite"},
    {"no_merges", [](GgufImage& i) { i.Remove(kMerges); }, kCorruption, "tokenizer.ggml.merges: the key is missing"},
    {"merges_of_numbers", [](GgufImage& i) { i.SetI32s(kMerges, {1}); }, kCorruption,
     "tokenizer.ggml.merges: no array of str"},
    {"merge_empty", [](GgufImage& i) { ReplaceMerge(i, ""); }, kCorruption, "merge 1 is not two texts"},
    {"merge_single", [](GgufImage& i) { ReplaceMerge(i, "ab"); }, kCorruption, "merge 1 is not two texts"},
    {"merge_no_left", [](GgufImage& i) { ReplaceMerge(i, " ab"); }, kCorruption, "merge 1 is not two texts"},
    {"merge_no_right", [](GgufImage& i) { ReplaceMerge(i, "ab "); }, kCorruption, "merge 1 is not two texts"},
    {"merge_of_three", [](GgufImage& i) { ReplaceMerge(i, "a b c"); }, kCorruption, "merge 1 is not two texts"},
    {"merge_nul", [](GgufImage& i) { ReplaceMerge(i, std::string("a b\0", 4)); }, kCorruption, "merge 1 is not"},
    {"no_model", [](GgufImage& i) { i.Remove("tokenizer.ggml.model"); }, kCorruption,
     "tokenizer.ggml.model: the key is missing"},
    {"model_other", [](GgufImage& i) { i.SetText("tokenizer.ggml.model", "bert"); }, kModelUnsupported,
     "tokenizer.ggml.model: tokenizer 'bert' is not supported; gpt2 and llama are"},
    {"no_pre", [](GgufImage& i) { i.Remove("tokenizer.ggml.pre"); }, kCorruption,
     "tokenizer.ggml.pre: the key is missing"},
    {"pre_other", [](GgufImage& i) { i.SetText("tokenizer.ggml.pre", "smolln"); }, kModelUnsupported,
     "tokenizer.ggml.pre: pre-tokenizer 'smolln' is not supported"},
    {"bos_beyond", [](GgufImage& i) { i.SetU32("tokenizer.ggml.bos_token_id", 270); }, kCorruption,
     "tokenizer.ggml.bos_token_id: 270 is no token of a vocabulary of 270"},
    {"eos_max", [](GgufImage& i) { i.SetU32("tokenizer.ggml.eos_token_id", UINT32_MAX); }, kCorruption,
     "tokenizer.ggml.eos_token_id: 4294967295 is no token"},
    {"eos_missing", [](GgufImage& i) { i.Remove("tokenizer.ggml.eos_token_id"); }, kCorruption,
     "tokenizer.ggml.eos_token_id: the key is missing"},
    {"eot_type", [](GgufImage& i) { i.SetI32("tokenizer.ggml.eot_token_id", 2); }, kCorruption,
     "tokenizer.ggml.eot_token_id: type i32, u32 is needed"},
    {"padding_beyond", [](GgufImage& i) { i.SetU32("tokenizer.ggml.padding_token_id", 1000); }, kCorruption,
     "tokenizer.ggml.padding_token_id: 1000 is no token"},
    {"bos_wanted_not_named",
     [](GgufImage& i) {
       i.SetBool("tokenizer.ggml.add_bos_token", 1);
       i.Remove("tokenizer.ggml.bos_token_id");
     },
     kCorruption, "tokenizer.ggml.bos_token_id: the key is missing"},
    {"add_bos_type", [](GgufImage& i) { i.SetU32("tokenizer.ggml.add_bos_token", 1); }, kCorruption,
     "tokenizer.ggml.add_bos_token: type u32, bool is needed"},
    {"suppressed_beyond",
     [](GgufImage& i) {
       i.SetI32s("tokenizer.ggml.suppress_tokens", {1, -5});
     },
     kCorruption, "tokenizer.ggml.suppress_tokens: entry 1 is no token"},
    {"template_type", [](GgufImage& i) { i.SetTexts("tokenizer.chat_template", {"a"}); }, kCorruption,
     "tokenizer.chat_template: type arr, str is needed"},
    {"template_utf8", [](GgufImage& i) { i.SetText("tokenizer.chat_template", "\xC0\x80"); }, kCorruption,
     "tokenizer.chat_template: the text is not valid UTF-8"},
    {"template_huge", [](GgufImage& i) { i.SetText("tokenizer.chat_template", std::string((1 << 20) + 1, ' ')); },
     kCorruption, "tokenizer.chat_template: 1048577 bytes"},
    {"pieces_without_scores",
     [](GgufImage& i) {
       i = SentencePieceImage();
       i.Remove(kScores);
     },
     kCorruption, "tokenizer.ggml.scores: the key is missing"},
    {"pieces_without_a_byte",
     [](GgufImage& i) {
       i = SentencePieceImage();
       ReplaceToken(i, 3 + 0x0A, "newline");
       ReplaceType(i, 3 + 0x0A, 1);
     },
     kCorruption, "no token for the byte <0x0A>"},
};

class TokenizerTest : public testing::TestWithParam<Refusal> {};
TEST_P(TokenizerTest, IsRefused) { ExpectRefused(GetParam()); }
INSTANTIATE_TEST_SUITE_P(All, TokenizerTest, testing::ValuesIn(kRefusals), RefusalName);

TEST(TokenizerOptionTest, SentencePieceIsRead) {
  GgufImage image = SentencePieceImage();
  image.Remove("tokenizer.ggml.add_bos_token");
  const test::TempFile file("pieces");
  file.Write(image.Bytes());
  const Result<GgufInfo> info = CheckGguf(file.path());
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->tokenizer.model, "llama");
  EXPECT_EQ(info->tokenizer.pre, "");
  EXPECT_EQ(info->tokenizer.bos, 1);
  EXPECT_EQ(info->tokenizer.eos, 2);
  EXPECT_EQ(info->tokenizer.eot, -1);
  EXPECT_TRUE(info->tokenizer.add_bos);
  EXPECT_FALSE(info->tokenizer.add_eos);
}

TEST(TokenizerOptionTest, ABytesOwnCharacterStandsInForItsToken) {
  GgufImage image = SentencePieceImage();
  ReplaceToken(image, 3 + 'z', "z");
  ReplaceType(image, 3 + 'z', 1);
  EXPECT_TRUE(CheckImage(image).ok()) << CheckImage(image).message();
}

TEST(TokenizerOptionTest, EmptyTokensAreRenamedLikeLibllamaDoes) {
  GgufImage image = SmallImage();
  ReplaceToken(image, 100, "");
  ReplaceToken(image, 101, "");
  EXPECT_TRUE(CheckImage(image).ok()) << CheckImage(image).message();
}

}  // namespace
}  // namespace kvant::engine
