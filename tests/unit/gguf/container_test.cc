// Faults of the container itself: reports R58 (lengths and counts) and R60 (dimensions, offsets).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kvant/engine/gguf_check.h"
#include "unit/gguf/refusal.h"

namespace kvant::engine {
namespace {

using test::GgufImage;
using enum StatusCode;

constexpr const char* kEmbedding = "token_embd.weight";

const Refusal kRefusals[] = {
    {"version_1", [](GgufImage& i) { i.version = 1; }, kVersionUnsupported, "version: GGUF version 1"},
    {"version_4", [](GgufImage& i) { i.version = 4; }, kVersionUnsupported, "version: GGUF version 4"},
    {"big_endian", [](GgufImage& i) { i.version = 0x03000000; }, kVersionUnsupported, "version: GGUF version 50331648"},
    {"empty_key", [](GgufImage& i) { i.values[3].key = ""; }, kCorruption, "metadata key: empty (byte "},
    {"nul_in_key", [](GgufImage& i) { i.values[3].key += std::string(1, '\0'); }, kCorruption,
     "metadata key: holds a NUL"},
    {"key_twice", [](GgufImage& i) { i.values[3].key = i.values[1].key; }, kCorruption,
     "general.name: the key stands in the file twice"},
    {"section_twice",
     [](GgufImage& i) {
       const std::vector<GgufImage::Value> section = i.values;
       i.values.insert(i.values.end(), section.begin(), section.end());
     },
     kCorruption, "general.architecture: the key stands in the file twice"},
    {"unknown_type", [](GgufImage& i) { i.At("x").type = 13; }, kCorruption, "x: unknown value type 13"},
    {"array_of_arrays",
     [](GgufImage& i) {
       i.At("x").type = 9;
       i.At("x").payload = std::string("\x09\0\0\0", 4) + std::string("\x01\0\0\0\0\0\0\0", 8) + std::string(64, '\0');
     },
     kCorruption, "x: arrays of arrays are not allowed (byte "},
    {"bool_of_2", [](GgufImage& i) { i.SetBool("x", 2); }, kCorruption, "x: a boolean is neither 0 nor 1"},
    {"alignment_0", [](GgufImage& i) { i.SetU32("general.alignment", 0); }, kCorruption, "general.alignment: 0 is not"},
    {"alignment_1", [](GgufImage& i) { i.SetU32("general.alignment", 1); }, kCorruption, "general.alignment: 1 is not"},
    {"alignment_3", [](GgufImage& i) { i.SetU32("general.alignment", 3); }, kCorruption, "general.alignment: 3 is not"},
    {"alignment_16", [](GgufImage& i) { i.SetU32("general.alignment", 16); }, kCorruption, "general.alignment: 16 is"},
    {"alignment_2_30", [](GgufImage& i) { i.SetU32("general.alignment", 1U << 30); }, kCorruption,
     "general.alignment: 1073741824 is not"},
    {"alignment_2_31", [](GgufImage& i) { i.SetU32("general.alignment", 1U << 31); }, kCorruption,
     "general.alignment: 2147483648 is not"},
    {"alignment_type", [](GgufImage& i) { i.SetI32("general.alignment", 32); }, kCorruption,
     "general.alignment: type i32, u32 is needed"},
    {"tensor_name_empty", [](GgufImage& i) { i.tensors[1].name = ""; }, kCorruption, "tensor name: empty"},
    {"tensor_name_nul", [](GgufImage& i) { i.tensors[1].name[3] = '\0'; }, kCorruption, "tensor name: holds a NUL"},
    {"tensor_name_64", [](GgufImage& i) { i.tensors[1].name = std::string(64, 'x'); }, kCorruption,
     "tensor name: length 64 is over the limit of 63 (byte "},
    {"tensor_twice", [](GgufImage& i) { i.tensors[2].name = kEmbedding; }, kCorruption,
     "token_embd.weight: the tensor stands in the file twice"},
    {"no_dimensions", [](GgufImage& i) { i.tensors[0].shape = {}; }, kCorruption,
     "tensor 'token_embd.weight': 0 dimensions"},
    {"five_dimensions",
     [](GgufImage& i) {
       i.tensors[0].shape = {1, 1, 1, 1, 1};
     },
     kCorruption, "tensor 'token_embd.weight': 5 dimensions"},
    {"dimension_0", [](GgufImage& i) { i.tensors[0].shape[1] = 0; }, kCorruption, "dimension 1 is 0 (byte "},
    {"dimension_2_42", [](GgufImage& i) { i.tensors[0].shape[1] = (uint64_t{1} << 42) + 1; }, kCorruption,
     "tensor 'token_embd.weight': 1125899906842880 bytes"},
    {"dimension_2_63", [](GgufImage& i) { i.tensors[0].shape[1] = uint64_t{1} << 63; }, kCorruption,
     "dimension 1 is 9223372036854775808"},
    {"dimension_2_32", [](GgufImage& i) { i.tensors[0].shape[1] = uint64_t{1} << 32; }, kCorruption,
     "reach beyond the end of the file"},
    {"dimension_max",
     [](GgufImage& i) {
       i.tensors[0].shape = {UINT64_MAX, 2};
     },
     kCorruption, "dimension 0 is 18446744073709551615"},
    {"dimensions_2_33",
     [](GgufImage& i) {
       i.tensors[0].shape = {uint64_t{1} << 33, uint64_t{1} << 33};
     },
     kCorruption, "the product of its dimensions does not fit"},
    {"bytes_wrap",
     [](GgufImage& i) {
       i.tensors[0].shape = {uint64_t{1} << 31, uint64_t{1} << 31};
     },
     kCorruption, "the product of its dimensions does not fit"},
    {"tensor_type_retired", [](GgufImage& i) { i.tensors[0].type = 31; }, kModelUnsupported,
     "tensor 'token_embd.weight': type q4_0_4_4 was retired"},
    {"tensor_type_4", [](GgufImage& i) { i.tensors[0].type = 4; }, kModelUnsupported, "type q4_2 was retired"},
    {"tensor_type_unknown", [](GgufImage& i) { i.tensors[0].type = 43; }, kCorruption, "unknown tensor type 43"},
    {"tensor_type_negative", [](GgufImage& i) { i.tensors[0].type = UINT32_MAX; }, kCorruption,
     "unknown tensor type 4294967295"},
    {"row_not_of_blocks", [](GgufImage& i) { i.tensors[0].type = 12; }, kCorruption,
     "row of 64 elements, type q4_K needs a multiple of 256"},
    {"offset_wraps", [](GgufImage& i) { i.tensors[1].offset = UINT64_MAX - 31; }, kCorruption, "leaves a gap"},
    {"offset_unaligned", [](GgufImage& i) { i.tensors[1].offset += 8; }, kCorruption, "is not a multiple of 32"},
    {"overlap", [](GgufImage& i) { i.tensors[2].offset = i.tensors[1].offset; }, kCorruption, "overlaps the tensor"},
    {"out_of_order", [](GgufImage& i) { std::swap(i.tensors[1], i.tensors[2]); }, kCorruption, "leaves a gap"},
    {"data_cut", [](GgufImage& i) { i.data.pop_back(); }, kCorruption, "reach beyond the end of the file"},
    {"no_data", [](GgufImage& i) { i.data.clear(); }, kCorruption, "reach beyond the end of the file"},
};

class ContainerTest : public testing::TestWithParam<Refusal> {};
TEST_P(ContainerTest, IsRefused) { ExpectRefused(GetParam()); }
INSTANTIATE_TEST_SUITE_P(All, ContainerTest, testing::ValuesIn(kRefusals), RefusalName);

TEST(ContainerFileTest, MissingFilesFoldersAndOtherFilesAreNamed) {
  EXPECT_EQ(CheckGguf("/nonexistent/model.gguf").status().code(), kNotFound);
  EXPECT_NE(CheckGguf("/nonexistent/model.gguf").status().message().find("/nonexistent/model.gguf"), std::string::npos);
  EXPECT_EQ(CheckGguf("/").status().code(), kIoError);
  EXPECT_EQ(CheckGguf("/dev/zero").status().code(), kIoError);
  const test::TempFile file("other");
  for (const std::string bytes : {"", "G", "GGU", "PK\3\4 a zip", "GGML"}) {
    file.Write(bytes);
    EXPECT_EQ(CheckGguf(file.path()).status().code(), kCorruption) << bytes;
  }
}

TEST(ContainerFileTest, ALargerAlignmentIsRead) {
  GgufImage image = SmallImage();
  const std::string data = image.data;
  image.alignment = 64;
  image.SetU32("general.alignment", 64);
  image.data.clear();
  for (GgufImage::Tensor& tensor : image.tensors) {
    uint64_t size = 4;
    for (const uint64_t dim : tensor.shape) {
      size *= dim;
    }
    image.data += data.substr(tensor.offset, size);
    tensor.offset = image.data.size() - size;
    image.data.resize((image.data.size() + 63) / 64 * 64);
  }
  EXPECT_TRUE(CheckImage(image).ok()) << CheckImage(image).message();
}

uint64_t StatusKilobytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string word;
  uint64_t value = 0;
  while (file >> word) {
    if (word == field + ":") {
      file >> value;
    }
  }
  return value;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMaxSeconds = 10.0;  // instrumented code is several times slower
#else
constexpr double kMaxSeconds = 1.0;
#endif

struct Cost {
  double worst_seconds = 0;  ///< of processor time, so that a busy machine does not count
  uint64_t grown_kilobytes = 0;
  int not_corrupt = 0;  ///< checks that said something else than kCorruption
};

void AddCheck(const std::string& path, Cost& cost) {
  const std::clock_t start = std::clock();
  const Status status = CheckGguf(path).status();
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  cost.worst_seconds = std::max(cost.worst_seconds, seconds);
  cost.not_corrupt += status.code() == kCorruption ? 0 : 1;
}

// Runs `checks` in a process of its own, so that the peak of memory is theirs, and states the limits of R58.
void ExpectCheap(const std::function<void(Cost&)>& checks) {
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t before = StatusKilobytes("VmRSS");
    Cost cost;
    checks(cost);
    cost.grown_kilobytes = StatusKilobytes("VmHWM") - before;
    const bool sent = write(channel[1], &cost, sizeof(cost)) == sizeof(cost);
    _exit(sent ? 0 : 1);
  }
  close(channel[1]);
  Cost cost;
  EXPECT_EQ(read(channel[0], &cost, sizeof(cost)), static_cast<ssize_t>(sizeof(cost)));
  close(channel[0]);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(cost.not_corrupt, 0);
  EXPECT_LT(cost.worst_seconds, kMaxSeconds);
  EXPECT_LT(cost.grown_kilobytes, 100U * 1024);
  testing::Test::RecordProperty("worst_ms", std::to_string(cost.worst_seconds * 1e3));
  testing::Test::RecordProperty("grown_kb", std::to_string(cost.grown_kilobytes));
}

TEST(ContainerCostTest, TinyFilesThatAskForGigabytesAreRefusedAtOnce) {
  const test::TempFile file("greedy");
  std::vector<GgufImage::Field> fields;
  const std::string bytes = SmallImage().Bytes(&fields);
  ExpectCheap([&](Cost& cost) {
    for (const uint64_t huge : {uint64_t{1} << 30, uint64_t{1} << 32, uint64_t{1} << 63, UINT64_MAX}) {
      for (const GgufImage::Field& field : fields) {
        if (field.size == 8 && field.offset < 4096) {  // every kind of count and length stands in the first page
          std::string changed = bytes.substr(0, 8192);
          std::memcpy(changed.data() + field.offset, &huge, sizeof(huge));
          file.Write(changed);
          AddCheck(file.path(), cost);
        }
      }
    }
  });
}

// 8 GiB on paper: counts that fit in the file, but not in the memory a header may take.
TEST(ContainerCostTest, AHugeFileOfZerosIsRefusedWithinTheHeaderLimit) {
  const test::TempFile file("sparse");
  ExpectCheap([&](Cost& cost) {
    for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 26, uint64_t{1} << 29}) {
      GgufImage image = SmallImage();
      image.values.clear();
      image.At("tokenizer.ggml.tokens").type = 9;
      image.At("tokenizer.ggml.tokens").payload = std::string("\x08\0\0\0", 4);
      image.At("tokenizer.ggml.tokens").payload.append(reinterpret_cast<const char*>(&count), sizeof(count));
      image.tensors.clear();
      image.data.clear();
      image.alignment = 1;
      file.Write(image.Bytes());
      std::filesystem::resize_file(file.path(), uint64_t{8} << 30);
      AddCheck(file.path(), cost);
    }
  });
}

}  // namespace
}  // namespace kvant::engine
