#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace kvant::engine {

/// What libllama did with a file: loaded it twice (vocabulary only, then whole), tokenized, and decoded a few tokens;
/// refused it in words; or died (assertion, exception out of its C interface, signal, more than 60 s).
enum class LlamaFate : char { kLoaded = 'L', kRefused = 'R', kDied = 'D' };

struct LlamaReport {
  LlamaFate fate = LlamaFate::kDied;
  std::string words;  ///< libllama's last error, or the end of what the dying process wrote
};

/// Gives each of `count` files, made by `bytes_of(index)`, to libllama in child processes.
std::vector<LlamaReport> LoadInChildren(size_t count, const std::function<std::string(size_t)>& bytes_of);

}  // namespace kvant::engine
