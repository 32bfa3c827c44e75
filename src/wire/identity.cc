#include "kvant/wire/identity.h"

#include <array>
#include <charconv>

namespace kvant::wire {
namespace {

std::string Hex(uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return "0x" + std::string(digits.data(), end);
}

std::string Number(float value) {
  std::array<char, 64> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed).ptr;
  return {digits.data(), end};
}

std::string Name(RopeLayout layout) {
  switch (layout) {
    case RopeLayout::kNone: return "none";
    case RopeLayout::kAdjacent: return "adjacent";
    case RopeLayout::kHalves: return "halves";
  }
  return "unknown";
}

class Differences {
 public:
  void Add(bool differs, const char* field, const std::string& sender, const std::string& receiver) {
    if (differs) {
      text_ += (text_.empty() ? "" : "; ") + std::string(field) + ": sender " + sender + ", receiver " + receiver;
    }
  }
  std::string Take() && { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

std::string DifferenceOf(const ModelIdentity& sender, const ModelIdentity& receiver) {
  Differences found;
  const auto hex = [&](const char* field, uint64_t a, uint64_t b) { found.Add(a != b, field, Hex(a), Hex(b)); };
  const auto count = [&](const char* field, uint32_t a, uint32_t b) {
    found.Add(a != b, field, std::to_string(a), std::to_string(b));
  };
  hex("model_fingerprint", sender.model_fingerprint, receiver.model_fingerprint);
  hex("tokenizer_fingerprint", sender.tokenizer_fingerprint, receiver.tokenizer_fingerprint);
  count("num_layers", sender.shape.num_layers, receiver.shape.num_layers);
  count("num_kv_heads", sender.shape.num_kv_heads, receiver.shape.num_kv_heads);
  count("head_dim", sender.shape.head_dim, receiver.shape.head_dim);
  found.Add(sender.rope_layout != receiver.rope_layout, "rope_layout", Name(sender.rope_layout),
            Name(receiver.rope_layout));
  found.Add(sender.rope_base != receiver.rope_base, "rope_base", Number(sender.rope_base), Number(receiver.rope_base));
  hex("rope_digest", sender.rope_digest, receiver.rope_digest);
  return std::move(found).Take();
}

}  // namespace kvant::wire
