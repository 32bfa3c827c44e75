// The byte patcher (F8) over header and tokenizer: every mutant is accepted or refused in words.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "kvant/engine/gguf_check.h"
#include "unit/gguf/mutants.h"
#include "unit/gguf/refusal.h"

namespace kvant::engine {
namespace {

constexpr uint64_t kRandomMutants = 24000;  // of llama; of the others each a sixth

// The codes a file alone can cause, with words.
void ExpectCleanRefusal(const Status& status, const std::string& what) {
  const bool clean = status.code() == StatusCode::kCorruption || status.code() == StatusCode::kModelUnsupported ||
                     status.code() == StatusCode::kVersionUnsupported;
  EXPECT_TRUE(clean) << what << ": " << StatusCodeName(status.code()) << " " << status.message();
}

class MutationTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, MutationTest, testing::ValuesIn(kArchitectures),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(MutationTest, AFileCutAnywhereIsRefused) {
  const MutantSource source = MutantSource::Make(GetParam());
  const test::TempFile file("cut");
  std::vector<size_t> sizes = source.borders;
  for (const size_t border : source.borders) {
    sizes.push_back(border + 1);
    sizes.push_back(border == 0 ? 0 : border - 1);
  }
  for (size_t size = 0; size < source.header_size; size += 7) {
    sizes.push_back(size);
  }
  for (size_t size = source.header_size; size < source.bytes.size(); size += 1009) {
    sizes.push_back(size);
  }
  sizes.push_back(source.bytes.size() - 1);
  std::sort(sizes.rbegin(), sizes.rend());
  file.Write(source.bytes);
  for (const size_t size : sizes) {
    std::filesystem::resize_file(file.path(), size);
    EXPECT_EQ(CheckGguf(file.path()).status().code(), StatusCode::kCorruption) << size << " bytes";
  }
}

TEST_P(MutationTest, EveryFieldSetToEveryAwkwardValue) {
  const MutantSource source = MutantSource::Make(GetParam());
  const test::TempFile file("field");
  size_t accepted = 0;
  for (const test::GgufImage::Field& field : source.fields) {
    for (const uint64_t value : kAwkwardValues) {
      const std::string changed = source.WithField(field, value);
      file.Write(changed);
      const Status status = CheckGguf(file.path()).status();
      const std::string what = field.name + " = " + std::to_string(value);
      if (status.ok()) {
        ++accepted;
      } else {
        ExpectCleanRefusal(status, what);
      }
      const bool structural = field.name.ends_with("count") || field.name.ends_with("length") ||
                              field.name.ends_with("dimension") || field.name.ends_with("offset");
      EXPECT_TRUE(!structural || !status.ok() || changed == source.bytes) << what;
    }
  }
  RecordProperty("accepted", static_cast<int>(accepted));
}

TEST_P(MutationTest, RandomMutantsAreAcceptedOrRefusedInWords) {
  const MutantSource source = MutantSource::Make(GetParam());
  const uint64_t num_mutants = GetParam() == std::string("llama") ? kRandomMutants : kRandomMutants / 6;
  const test::TempFile file("random");
  size_t accepted = 0;
  for (uint64_t seed = 0; seed < num_mutants; ++seed) {
    const Mutant mutant = source.Random(seed);
    file.Write(mutant.bytes);
    const Status status = CheckGguf(file.path()).status();
    accepted += status.ok() ? 1 : 0;
    if (!status.ok()) {
      ExpectCleanRefusal(status, mutant.what);
    }
  }
  RecordProperty("accepted", static_cast<int>(accepted));
  EXPECT_GT(accepted, num_mutants / 100);  // else the differential test has nothing to compare
}

}  // namespace
}  // namespace kvant::engine
