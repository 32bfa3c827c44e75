#include "support/tiny_tokenizer.h"

#include <vector>

namespace kvant::test {
namespace {

enum TokenType : int32_t { kNormal = 1, kControl = 3, kUnused = 5 };

constexpr const char* kChatTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) {
    return std::string(1, static_cast<char>(code_point));
  }
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// GPT-2's printable stand-ins: bytes that print stand for themselves, the others for 256, 257, …
std::vector<std::string> ByteTexts() {
  std::vector<std::string> texts;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    texts.push_back(Utf8(prints ? byte : next++));
  }
  return texts;
}

struct Lists {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges;

  void Add(const std::string& token, TokenType type) {
    tokens.push_back(token);
    types.push_back(type);
  }
};

Lists MakeLists(uint32_t vocab_size) {
  Lists lists;
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    lists.Add(special, kControl);
  }
  for (const std::string& text : ByteTexts()) {
    lists.Add(text, kNormal);
  }
  for (uint32_t pair = 0; lists.tokens.size() < vocab_size && pair < 26 * 26; ++pair) {
    const std::string left(1, static_cast<char>('a' + pair % 26));
    const std::string right(1, static_cast<char>('a' + pair / 26));
    lists.Add(left + right, kNormal);
    lists.merges.push_back(left + " " + right);
  }
  while (lists.tokens.size() < vocab_size) {
    lists.Add("<|unused_" + std::to_string(lists.tokens.size()) + "|>", kUnused);
  }
  return lists;
}

void SetTexts(gguf_context* metadata, const char* key, const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(text.c_str());
  }
  gguf_set_arr_str(metadata, key, pointers.data(), pointers.size());
}

}  // namespace

void AddTinyTokenizer(gguf_context* metadata, uint32_t vocab_size, const std::string& pre) {
  const Lists lists = MakeLists(vocab_size);
  gguf_set_val_str(metadata, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(metadata, "tokenizer.ggml.pre", pre.c_str());
  SetTexts(metadata, "tokenizer.ggml.tokens", lists.tokens);
  gguf_set_arr_data(metadata, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, lists.types.data(), lists.types.size());
  SetTexts(metadata, "tokenizer.ggml.merges", lists.merges);
  gguf_set_val_u32(metadata, "tokenizer.ggml.bos_token_id", kTinyImStart);
  gguf_set_val_u32(metadata, "tokenizer.ggml.eos_token_id", kTinyEos);
  gguf_set_val_u32(metadata, "tokenizer.ggml.eot_token_id", kTinyImEnd);
  gguf_set_val_bool(metadata, "tokenizer.ggml.add_bos_token", false);
  gguf_set_val_str(metadata, "tokenizer.chat_template", kChatTemplate);
}

}  // namespace kvant::test
