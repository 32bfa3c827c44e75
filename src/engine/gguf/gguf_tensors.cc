#include "engine/gguf/gguf_tensors.h"

#include <ggml.h>

#include <algorithm>
#include <string>

#include "engine/gguf/concat.h"
#include "kvant/base/checked.h"

namespace kvant::engine {
namespace {

static_assert(GGML_MAX_DIMS == std::tuple_size_v<decltype(GgufTensor::shape)>);

// Types that were in GGUF once; the numbers are still taken.
struct RetiredType {
  uint32_t type;
  std::string_view name;
};
constexpr RetiredType kRetiredTypes[] = {{4, "q4_2"},      {5, "q4_3"},        {31, "q4_0_4_4"},   {32, "q4_0_4_8"},
                                         {33, "q4_0_8_8"}, {36, "iq4_nl_4_4"}, {37, "iq4_nl_4_8"}, {38, "iq4_nl_8_8"}};

std::string Field(std::string_view name) { return Concat("tensor '", name, "'"); }

Status Unsupported(std::string_view name, std::string_view what, uint64_t offset) {
  return {StatusCode::kModelUnsupported, CorruptAt(Field(name), what, offset).message()};
}

Result<uint32_t> ReadTensorType(GgufReader& reader, std::string_view name) {
  const uint64_t start = reader.offset();
  KVANT_ASSIGN_OR_RETURN(const uint32_t type, reader.Read<uint32_t>("tensor type"));
  for (const RetiredType& retired : kRetiredTypes) {
    if (type == retired.type) {
      return Unsupported(name, Concat("type ", retired.name, " was retired, the file must be converted again"), start);
    }
  }
  if (type >= GGML_TYPE_COUNT || ggml_blck_size(static_cast<ggml_type>(type)) <= 0) {
    return CorruptAt(Field(name), Concat("unknown tensor type ", type), start);
  }
  return type;
}

Status ReadShape(GgufReader& reader, GgufTensor& tensor) {
  const uint64_t start = reader.offset();
  KVANT_ASSIGN_OR_RETURN(const uint32_t num_dims, reader.Read<uint32_t>("tensor dimension count"));
  if (num_dims == 0 || num_dims > tensor.shape.size()) {
    return CorruptAt(Field(tensor.name), Concat(num_dims, " dimensions, 1 to 4 are allowed"), start);
  }
  for (uint32_t i = 0; i < num_dims; ++i) {
    const uint64_t at = reader.offset();
    KVANT_ASSIGN_OR_RETURN(tensor.shape[i], reader.Read<uint64_t>("tensor dimension"));
    if (tensor.shape[i] == 0 || tensor.shape[i] > INT64_MAX) {
      return CorruptAt(Field(tensor.name), Concat("dimension ", i, " is ", tensor.shape[i]), at);
    }
  }
  return OkStatus();
}

// Bytes of all rows; nothing where the product leaves 63 bits.
std::optional<uint64_t> TensorBytes(const GgufTensor& tensor) {
  const auto type = static_cast<ggml_type>(tensor.type);
  const auto block = static_cast<uint64_t>(ggml_blck_size(type));
  std::optional<uint64_t> elements = 1;
  for (const uint64_t dim : tensor.shape) {
    elements = CheckedMul(*elements, dim);
    if (!elements || *elements > INT64_MAX) {
      return std::nullopt;
    }
  }
  const auto bytes = CheckedMul(*elements / block, ggml_type_size(type));
  return bytes && *bytes <= INT64_MAX ? bytes : std::nullopt;
}

Status MeasureTensor(GgufTensor& tensor) {
  const auto block = static_cast<uint64_t>(ggml_blck_size(static_cast<ggml_type>(tensor.type)));
  if (tensor.shape[0] % block != 0) {
    return CorruptAt(Field(tensor.name),
                     Concat("row of ", tensor.shape[0], " elements, type ", TensorTypeName(tensor.type),
                            " needs a multiple of ", block),
                     tensor.offset);
  }
  const auto bytes = TensorBytes(tensor);
  if (!bytes) {
    return CorruptAt(Field(tensor.name), "the product of its dimensions does not fit in 63 bits", tensor.offset);
  }
  tensor.size = *bytes;
  return OkStatus();
}

}  // namespace

std::string_view TensorTypeName(uint32_t type) { return ggml_type_name(static_cast<ggml_type>(type)); }

bool IsMatrixType(uint32_t type) {
  const auto kind = static_cast<ggml_type>(type);
  if (kind == GGML_TYPE_F32 || kind == GGML_TYPE_F16 || kind == GGML_TYPE_BF16) {
    return true;
  }
  // q8_1 and q8_K hold activations, not weights; ggml cannot expand them.
  return ggml_is_quantized(kind) && ggml_get_type_traits(kind)->to_float != nullptr;
}

Result<GgufTensor> ReadTensor(GgufReader& reader) {
  GgufTensor tensor;
  tensor.offset = reader.offset();
  KVANT_ASSIGN_OR_RETURN(tensor.name, reader.ReadString("tensor name", GGML_MAX_NAME - 1));
  KVANT_RETURN_IF_ERROR(ReadShape(reader, tensor));
  KVANT_ASSIGN_OR_RETURN(tensor.type, ReadTensorType(reader, tensor.name));
  KVANT_RETURN_IF_ERROR(MeasureTensor(tensor));
  KVANT_ASSIGN_OR_RETURN(tensor.start, reader.Read<uint64_t>("tensor offset"));
  return tensor;
}

Status CheckTensorRanges(const GgufHeader& header) {
  const uint64_t file_size = header.reader.file_size();
  if (header.data_offset > file_size) {
    return CorruptAt("tensor data", "starts beyond the end of the file", header.data_offset);
  }
  const uint64_t data_size = file_size - header.data_offset;
  uint64_t expected = 0;
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.start % header.alignment != 0) {
      return CorruptAt(Field(tensor.name),
                       Concat("data offset ", tensor.start, " is not a multiple of ", header.alignment), tensor.offset);
    }
    if (tensor.start != expected) {
      const char* fault = tensor.start < expected ? " overlaps the tensor before it, which ends at "
                                                  : " leaves a gap after the tensor before it, which ends at ";
      return CorruptAt(Field(tensor.name), Concat("data offset ", tensor.start, fault, expected), tensor.offset);
    }
    if (tensor.start > data_size || tensor.size > data_size - tensor.start) {
      return CorruptAt(
          Field(tensor.name),
          Concat(tensor.size, " bytes of data at offset ", tensor.start, " reach beyond the end of the file"),
          tensor.offset);
    }
    expected = RoundUp(tensor.start + tensor.size, header.alignment);
  }
  return OkStatus();
}

}  // namespace kvant::engine
