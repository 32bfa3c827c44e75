#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kvant/engine/engine.h"
#include "kvant/engine/prompt_encoder.h"
#include "kvant/engine/tokenizer.h"

namespace kvant::test {

/// A loaded model with an engine.
struct LoadedModel {
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::Backend> backend;
  std::unique_ptr<engine::Engine> engine;
  cache::MemoryAccount account;

  static std::unique_ptr<LoadedModel> Load(const std::string& path, int num_threads = 2) {
    auto loaded = std::make_unique<LoadedModel>();
    auto model = engine::Model::Load(path);
    EXPECT_TRUE(model.ok()) << model.status().message();
    auto backend = engine::Backend::Create({KVANT_BACKEND_DIR, kernels::BestIsa(), num_threads});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    if (!model.ok() || !backend.ok()) {
      return nullptr;
    }
    loaded->model = std::move(model).value();
    loaded->backend = std::move(backend).value();
    loaded->engine = std::make_unique<engine::Engine>(loaded->model.get(), loaded->backend.get());
    return loaded;
  }
};

/// The default model, or an empty string where it is not installed.
inline std::string DefaultModelPath() {
  const char* set = std::getenv("KVANT_TEST_MODEL");
  const char* home = std::getenv("HOME");
  const std::string path = set != nullptr ? set
                                          : std::string(home != nullptr ? home : "") +
                                                "/.local/share/kvant/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : std::string();
}

/// Gemma 3 270M as scripts/gemma.sh lays it down, or an empty string.
inline std::string GemmaModelPath() {
  const char* set = std::getenv("KVANT_TEST_GEMMA");
  const char* home = std::getenv("HOME");
  const std::string path =
      set != nullptr ? set
                     : std::string(home != nullptr ? home : "") + "/.local/share/kvant/models/gemma-3-270m-q4_k_m.gguf";
  return std::filesystem::exists(path) ? path : std::string();
}

/// The evaluation data folder, or an empty string where it is absent.
inline std::string EvalDataDir() {
  const std::string path = std::string(KVANT_SOURCE_DIR) + "/../shared/evaldata";
  return std::filesystem::exists(path) ? path : std::string();
}

}  // namespace kvant::test
