#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/engine/engine.h"
#include "kvant/engine/tokenizer.h"

namespace kvant::engine {

/// A sequence that was kept: its cache, and the tokens that are in it.
struct Session {
  cache::Sequence sequence;
  std::vector<int32_t> tokens;
};

/// Keep a sequence in a file: the frames of a transfer, with every layer as it lies (docs/format/session.md). The file
/// appears whole or not at all.
///
/// Requires tokens.size() == sequence.num_tokens(), at least one
/// Errors   kIoError with the path; kPrecisionUnsupported: the progressive code; kOutOfMemory
Status SaveSession(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                   const cache::Sequence& sequence, std::span<const int32_t> tokens);

/// Whether one could be kept at a precision, and there, before anything is computed.
/// Errors  kPrecisionUnsupported: the progressive code; kIoError with the path
Status CheckSessionPrecision(const codec::Precision& kv);
Status CheckSession(const std::string& path, const codec::Precision& kv);
/// Whether a file could be kept there. Errors  kIoError with the path
Status CheckPlace(const std::string& path);

/// Everything is verified before anything is handed out. The sequence goes on at the precision `kv`.
///
/// Errors  kNotFound: no such file; kIoError; kCorruption, kOutOfRange …: what OpenFrame and the decoders say, with the
///         frame's place; kMismatch: another model or another precision, with every differing field; kCapacityExceeded
Result<Session> LoadSession(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                            const codec::Precision& kv, cache::MemoryAccount* account);

}  // namespace kvant::engine
