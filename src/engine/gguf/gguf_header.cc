#include "engine/gguf/gguf_header.h"

#include <bit>
#include <string>

#include "engine/gguf/concat.h"
#include "engine/gguf/gguf_tensors.h"
#include "kvant/base/checked.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::engine {
namespace {

constexpr std::array<char, 4> kMagic = {'G', 'G', 'U', 'F'};
constexpr uint32_t kMinVersion = 2;  // version 1 had 32-bit lengths
constexpr uint32_t kMaxVersion = 3;
constexpr uint64_t kMaxValues = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxKeyLength = 65535;  // GGUF's own limit
constexpr uint64_t kMaxStringLength = uint64_t{16} << 20;
constexpr uint64_t kMinValueBytes = 8 + 1 + 4 + 1;           // length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // length, name, dims, one dim, type, offset
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr std::array<uint64_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::array<std::string_view, 13> kTypeNames = {"u8",   "i8",  "u16", "i16", "u32", "i32", "f32",
                                                         "bool", "str", "arr", "u64", "i64", "f64"};

Status ReadPreamble(GgufHeader& header) {
  GgufReader& reader = header.reader;
  using Magic = std::array<char, 4>;
  KVANT_ASSIGN_OR_RETURN(const Magic magic, reader.Read<Magic>("magic"));
  if (magic != kMagic) {
    return CorruptAt("magic", "not a GGUF file", 0);
  }
  KVANT_ASSIGN_OR_RETURN(header.version, reader.Read<uint32_t>("version"));
  if (header.version < kMinVersion || header.version > kMaxVersion) {
    return {StatusCode::kVersionUnsupported,
            Concat("version: GGUF version ", header.version, " is not read by this build, 2 and 3 are (byte 4)")};
  }
  return OkStatus();
}

Result<GgufType> ReadType(GgufReader& reader, std::string_view field) {
  const uint64_t start = reader.offset();
  KVANT_ASSIGN_OR_RETURN(const uint32_t type, reader.Read<uint32_t>(field));
  if (type >= kTypeBytes.size()) {
    return CorruptAt(field, Concat("unknown value type ", type), start);
  }
  return static_cast<GgufType>(type);
}

uint64_t TypeBytes(GgufType type) { return kTypeBytes[static_cast<size_t>(type)]; }

Status ReadStrings(GgufReader& reader, const GgufValue& value) {
  for (uint64_t i = 0; i < value.count; ++i) {
    KVANT_RETURN_IF_ERROR(reader.ReadString(value.key, kMaxStringLength).status());
  }
  return OkStatus();
}

Status CheckBools(const GgufValue& value, uint64_t start) {
  for (uint64_t i = 0; i < value.bytes.size(); ++i) {
    if (static_cast<uint8_t>(value.bytes[i]) > 1) {
      return CorruptAt(value.key, "a boolean is neither 0 nor 1", start + i);
    }
  }
  return OkStatus();
}

// Moves past the value's payload and notes where it lies.
Status ReadPayload(GgufReader& reader, GgufValue& value) {
  const uint64_t start = reader.offset();
  if (value.element == GgufType::kString) {
    KVANT_RETURN_IF_ERROR(ReadStrings(reader, value));
    value.bytes = reader.Seen(reader.offset()).subspan(start);
    return OkStatus();
  }
  const auto size = CheckedMul(value.count, TypeBytes(value.element));
  if (!size) {
    return CorruptAt(value.key, "the array's size does not fit in 64 bits", start);
  }
  KVANT_ASSIGN_OR_RETURN(value.bytes, reader.Take(*size, value.key));
  return value.element == GgufType::kBool ? CheckBools(value, start) : OkStatus();
}

Status ReadArrayHead(GgufReader& reader, GgufValue& value) {
  const uint64_t start = reader.offset();
  KVANT_ASSIGN_OR_RETURN(value.element, ReadType(reader, value.key));
  if (value.element == GgufType::kArray) {
    return CorruptAt(value.key, "arrays of arrays are not allowed", start);
  }
  const uint64_t item_bytes = value.element == GgufType::kString ? sizeof(uint64_t) : TypeBytes(value.element);
  KVANT_ASSIGN_OR_RETURN(value.count, reader.ReadCount(value.key, item_bytes, kMaxGgufHeaderBytes));
  return OkStatus();
}

Status CheckName(std::string_view name, std::string_view field, uint64_t offset) {
  if (name.empty()) {
    return CorruptAt(field, "empty", offset);
  }
  // ggml handles names as C strings: what follows a NUL would be lost, and two names become one.
  return name.find('\0') == std::string_view::npos ? OkStatus() : CorruptAt(field, "holds a NUL", offset);
}

Status ReadValue(GgufHeader& header) {
  GgufReader& reader = header.reader;
  GgufValue value;
  value.offset = reader.offset();
  KVANT_ASSIGN_OR_RETURN(value.key, reader.ReadString("metadata key", kMaxKeyLength));
  KVANT_RETURN_IF_ERROR(CheckName(value.key, "metadata key", value.offset));
  if (!header.value_index.emplace(value.key, header.values.size()).second) {
    return CorruptAt(value.key, "the key stands in the file twice", value.offset);
  }
  KVANT_ASSIGN_OR_RETURN(value.type, ReadType(reader, value.key));
  value.element = value.type;
  if (value.type == GgufType::kArray) {
    KVANT_RETURN_IF_ERROR(ReadArrayHead(reader, value));
  }
  KVANT_RETURN_IF_ERROR(ReadPayload(reader, value));
  header.values.push_back(value);
  return OkStatus();
}

Status ReadAlignment(GgufHeader& header) {
  header.alignment = kDefaultAlignment;
  const auto found = header.value_index.find("general.alignment");
  if (found == header.value_index.end()) {
    return OkStatus();
  }
  const GgufValue& value = header.values[found->second];
  if (value.type != GgufType::kU32) {
    return CorruptAt(value.key, Concat("type ", GgufTypeName(value.type), ", u32 is needed"), value.offset);
  }
  uint32_t alignment = 0;
  std::memcpy(&alignment, value.bytes.data(), sizeof(alignment));
  if (!std::has_single_bit(alignment) || alignment < kMinTensorAlignment || alignment > kMaxAlignment) {
    return CorruptAt(value.key,
                     Concat(alignment, " is not a power of two from ", kMinTensorAlignment, " to ", kMaxAlignment),
                     value.offset);
  }
  header.alignment = alignment;
  return OkStatus();
}

Status ReadTensors(GgufHeader& header, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t start = header.reader.offset();
    KVANT_ASSIGN_OR_RETURN(const GgufTensor tensor, ReadTensor(header.reader));
    KVANT_RETURN_IF_ERROR(CheckName(tensor.name, "tensor name", start));
    if (!header.tensor_index.emplace(tensor.name, header.tensors.size()).second) {
      return CorruptAt(tensor.name, "the tensor stands in the file twice", start);
    }
    header.tensors.push_back(tensor);
  }
  return OkStatus();
}

Status ReadAll(GgufHeader& header) {
  KVANT_RETURN_IF_ERROR(ReadPreamble(header));
  KVANT_ASSIGN_OR_RETURN(const uint64_t num_tensors,
                         header.reader.ReadCount("tensor count", kMinTensorBytes, kMaxTensors));
  KVANT_ASSIGN_OR_RETURN(const uint64_t num_values,
                         header.reader.ReadCount("metadata count", kMinValueBytes, kMaxValues));
  for (uint64_t i = 0; i < num_values; ++i) {
    KVANT_RETURN_IF_ERROR(ReadValue(header));
  }
  KVANT_RETURN_IF_ERROR(ReadAlignment(header));
  KVANT_RETURN_IF_ERROR(ReadTensors(header, num_tensors));
  header.data_offset = RoundUp(header.reader.offset(), header.alignment);
  return CheckTensorRanges(header);
}

}  // namespace

std::string_view GgufTypeName(GgufType type) { return kTypeNames[static_cast<size_t>(type)]; }

Result<GgufHeader> ReadGgufHeader(const std::string& path) {
  KVANT_ASSIGN_OR_RETURN(GgufReader reader, GgufReader::Open(path));
  GgufHeader header(std::move(reader));
  KVANT_RETURN_IF_ERROR(ReadAll(header));
  return header;
}

}  // namespace kvant::engine
