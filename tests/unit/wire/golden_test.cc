#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/wire_samples.h"

namespace kvant {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <typename Range>
std::string AsText(const Range& range) {
  const auto bytes = std::as_bytes(std::span(range));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The format of version 1 is frozen: these files are what peers of every later release send and expect.
// They were written by `kvant_wire_dump golden tests/golden/v1`.
TEST(GoldenTest, FramesAreByteForByteWhatTheyWere) {
  const std::filesystem::path folder = KVANT_GOLDEN_DIR;
  for (const test::WireSample& sample : test::GoldenSamples()) {
    EXPECT_EQ(ReadFile(folder / (sample.name + ".bin")), AsText(sample.frame.bytes())) << sample.name;
    EXPECT_EQ(ReadFile(folder / (sample.name + ".fields")), sample.fields) << sample.name;
    if (!sample.values.empty()) {
      EXPECT_EQ(ReadFile(folder / (sample.name + ".f32")), AsText(sample.values)) << sample.name;
    }
  }
}

TEST(GoldenTest, EveryFileBelongsToASample) {
  size_t num_frames = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVANT_GOLDEN_DIR)) {
    num_frames += entry.path().extension() == ".bin" ? 1 : 0;
  }
  EXPECT_EQ(num_frames, test::GoldenSamples().size());
}

}  // namespace
}  // namespace kvant
