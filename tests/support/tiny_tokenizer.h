#pragma once

#include <gguf.h>

#include <cstdint>
#include <string>

namespace kvant::test {

/// Token ids of a tiny model's special tokens; bytes follow from kTinyFirstByte in byte order.
inline constexpr uint32_t kTinyEos = 0;
inline constexpr uint32_t kTinyImStart = 1;
inline constexpr uint32_t kTinyImEnd = 2;
inline constexpr uint32_t kTinyFirstByte = 3;

/// Byte-level BPE: three special tokens, 256 bytes, then merged pairs of lower-case letters and, where those run
/// out, unused tokens. With a ChatML template.
void AddTinyTokenizer(gguf_context* metadata, uint32_t vocab_size, const std::string& pre);

}  // namespace kvant::test
