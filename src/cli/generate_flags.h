#pragma once

#include <optional>
#include <string>

#include "cli/engine_flags.h"
#include "cli/remote_flags.h"
#include "kvant/codec/precision.h"
#include "kvant/engine/generate.h"

namespace kvant::cli {

/// What `kvant generate` was asked for, as read from flags and environment.
struct GenerateFlags {
  EngineFlags engine;
  std::optional<std::string> prompt;
  std::optional<std::string> file;
  bool raw = false;
  std::string kv;    ///< empty: int8, or as-received where something is sent
  std::string wire;  ///< empty: int8
  bool disaggregated = false;
  std::string decode_worker;  ///< empty: decode in this process
  RemoteFlags remote;
  double link_gbps = 0;
  uint32_t ttft_target_ms = 0;  ///< 0: none
  std::string save_frames;      ///< file for what is sent; empty: none
  uint64_t kv_memory_mb = 0;    ///< 0: no limit
  std::string grammar_file;
  std::string profile;  ///< file with the model's maps; empty: where calibrate puts it
  engine::GenerateOptions options;
};

void AddGenerateFlags(CLI::App& command, GenerateFlags& flags);

/// Where the KV goes, at which precision.
struct KvPlan {
  codec::Precision kv;  ///< of the cache that decodes: with `wire` the same
  std::optional<codec::Precision> wire;
};

/// Errors  kPrecisionUnsupported, kInvalidArgument: a word that does not parse, a flag without meaning, or a --kv that
///         differs from what arrives
Result<KvPlan> PlanKv(const GenerateFlags& flags);

/// The prompt as the user gave it, checked.
/// Errors  kInvalidArgument: none, two, an empty one, or invalid UTF-8 with its byte offset; kNotFound, kIoError: the
/// file
Result<std::string> ReadPrompt(const GenerateFlags& flags);

/// The whole of a text file that `flag` names.
/// Errors  kNotFound; kIoError; kCapacityExceeded beyond kMaxTextFileBytes
Result<std::string> ReadTextFile(const std::string& flag, const std::string& path);
inline constexpr size_t kMaxTextFileBytes = size_t{64} << 20;

}  // namespace kvant::cli
