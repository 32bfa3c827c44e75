#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/gguf/gguf_reader.h"
#include "kvant/base/status.h"

namespace kvant::engine {

/// Value types of GGUF metadata; the numbers are the file's.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view GgufTypeName(GgufType type);

/// A metadata entry. A scalar has count 1; an array has its elements' type in `element`.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  ///< equals type for a scalar
  uint64_t count = 1;
  std::span<const std::byte> bytes;  ///< as stored; strings are length and text
  uint64_t offset = 0;               ///< of the key in the file
};

struct GgufTensor {
  std::string_view name;
  std::array<uint64_t, 4> shape = {1, 1, 1, 1};
  uint32_t type = 0;    ///< ggml's number, known to this build
  uint64_t start = 0;   ///< from the data section
  uint64_t size = 0;    ///< bytes
  uint64_t offset = 0;  ///< of this description in the file
};

/// A header that is sound as a container: it says nothing yet about models.
///
/// Ensures  keys and tensor names unique, non-empty, without NUL; every value inside the file; tensors in file order,
///          without gaps other than alignment, aligned and inside the file (as ggml requires)
struct GgufHeader {
  explicit GgufHeader(GgufReader from) : reader(std::move(from)) {}

  GgufReader reader;
  uint32_t version = 0;
  uint64_t alignment = 0;
  uint64_t data_offset = 0;
  std::vector<GgufValue> values;
  std::unordered_map<std::string_view, size_t> value_index;
  std::vector<GgufTensor> tensors;
  std::unordered_map<std::string_view, size_t> tensor_index;
};

Result<GgufHeader> ReadGgufHeader(const std::string& path);

}  // namespace kvant::engine
