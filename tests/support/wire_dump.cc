// Writes wire samples for decoders other than our own: NAME.bin the frame, NAME.fields the fields it holds,
// NAME.f32 the decoded keys and values of a layer frame (little-endian fp32).
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include "support/wire_samples.h"

namespace {

bool WriteFile(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

bool WriteSample(const std::filesystem::path& folder, const kvant::test::WireSample& sample) {
  return WriteFile(folder / (sample.name + ".bin"), sample.frame.bytes()) &&
         WriteFile(folder / (sample.name + ".fields"), std::as_bytes(std::span(sample.fields))) &&
         (sample.values.empty() || WriteFile(folder / (sample.name + ".f32"), std::as_bytes(std::span(sample.values))));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view set = argc == 3 ? argv[1] : "";
  if (set != "golden" && set != "many") {
    std::fprintf(stderr, "usage: kvant_wire_dump golden|many FOLDER\n");
    return 2;
  }
  std::filesystem::create_directories(argv[2]);
  for (const auto& sample : set == "golden" ? kvant::test::GoldenSamples() : kvant::test::ManyLayerSamples()) {
    if (!WriteSample(argv[2], sample)) {
      std::fprintf(stderr, "kvant_wire_dump: cannot write %s to %s\n", sample.name.c_str(), argv[2]);
      return 1;
    }
  }
  return 0;
}
