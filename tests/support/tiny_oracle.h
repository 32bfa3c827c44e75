#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/engine_fixture.h"
#include "support/gguf_fixture.h"
#include "support/oracle.h"
#include "support/our_logits.h"
#include "support/temp_dir.h"

namespace kvant::test {

/// Mean KL that an F32 model may have against libllama.
inline constexpr double kOracleBound = 2e-5;
inline constexpr size_t kTinyTokens = 200;

inline std::vector<int32_t> RandomTokens(uint32_t vocab_size, size_t count = kTinyTokens) {
  std::vector<int32_t> tokens(count);
  uint64_t state = 7;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    token = static_cast<int32_t>((state >> 33) % vocab_size);
  }
  return tokens;
}

inline std::string WriteTiny(const TempDir& folder, const std::string& name, const TinyModelParams& params) {
  const Status status = WriteTinyModel(params, folder.File(name));
  EXPECT_TRUE(status.ok()) << status.message();
  return folder.File(name);
}

}  // namespace kvant::test
