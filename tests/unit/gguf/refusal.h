#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "kvant/base/status.h"
#include "support/gguf_image.h"

namespace kvant::engine {

/// A sound small model, a fault put into it, and the error that must come.
struct Refusal {
  const char* name;
  void (*damage)(test::GgufImage& image);
  StatusCode code;
  const char* message;  ///< what the error's text must contain: the field, then the fault
  const char* architecture = "llama";
};

inline void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
inline std::string RefusalName(const testing::TestParamInfo<Refusal>& info) { return info.param.name; }

/// A one-layer model with 2 query heads over 1 KV head of size 32 and a vocabulary of 270, with all that the
/// architecture may have.
test::GgufImage SmallImage(const std::string& architecture = "llama");

/// All that the fixtures can write.
inline constexpr const char* kArchitectures[] = {"llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"};

/// The same with a SentencePiece vocabulary: three special tokens, 256 bytes, eleven pieces.
test::GgufImage SentencePieceImage();

/// CheckGguf on the damaged image: the error is as stated.
void ExpectRefused(const Refusal& refusal);

/// CheckGguf on the image as it is.
Status CheckImage(const test::GgufImage& image);

}  // namespace kvant::engine
