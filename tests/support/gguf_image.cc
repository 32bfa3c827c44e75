#include "support/gguf_image.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace kvant::test {
namespace {

constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;
constexpr uint64_t kFileAlignment = 32;
constexpr std::array<size_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct Input {
  const std::string& bytes;
  size_t at = 0;

  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    at += sizeof(T);
    return value;
  }
  std::string TakeBytes(size_t size) {
    at += size;
    return bytes.substr(at - size, size);
  }
  std::string TakeText() { return TakeBytes(Take<uint64_t>()); }
  std::string TakePayload(uint32_t type) {
    const size_t start = at;
    const uint32_t element = type == kArray ? Take<uint32_t>() : type;
    const uint64_t count = type == kArray ? Take<uint64_t>() : 1;
    for (uint64_t i = 0; i < count; ++i) {
      at += element == kString ? Take<uint64_t>() : kTypeBytes[element];
    }
    return bytes.substr(start, at - start);
  }
};

struct Output {
  std::string bytes;
  std::vector<GgufImage::Field> fields;

  template <typename T>
  void Put(const std::string& name, T value) {
    fields.push_back({name, bytes.size(), sizeof(T)});
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void PutText(const std::string& name, const std::string& text) {
    Put(name + " length", uint64_t{text.size()});
    bytes += text;
  }
  // Names the lengths and scalars inside a payload that is well formed; appends any other as it is.
  void PutPayload(const GgufImage::Value& value) {
    const size_t start = bytes.size();
    bytes += value.payload;
    size_t at = start;
    uint32_t element = value.type;
    uint64_t count = 1;
    if (value.type == kArray && value.payload.size() >= 12) {
      fields.push_back({value.key + " element type", at, 4});
      fields.push_back({value.key + " count", at + 4, 8});
      std::memcpy(&element, bytes.data() + at, sizeof(element));
      std::memcpy(&count, bytes.data() + at + 4, sizeof(count));
      at += 12;
    }
    for (uint64_t i = 0; i < count && element < kTypeBytes.size(); ++i) {
      const size_t size = element == kString ? sizeof(uint64_t) : kTypeBytes[element];
      if (size == 0 || at + size > bytes.size()) {
        return;
      }
      fields.push_back({value.key + "[" + std::to_string(i) + "]", at, size});
      uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, element == kString ? size : 0);
      at += size + length;
    }
  }
};

template <typename T>
std::vector<T> Numbers(const std::string& payload) {
  std::vector<T> numbers((payload.size() - 12) / sizeof(T));
  std::memcpy(numbers.data(), payload.data() + 12, numbers.size() * sizeof(T));
  return numbers;
}

template <typename T>
std::string ArrayPayload(uint32_t element, const std::vector<T>& numbers) {
  Output out;
  out.Put("", element);
  out.Put("", uint64_t{numbers.size()});
  out.bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
  return out.bytes;
}

}  // namespace

GgufImage GgufImage::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Input in{bytes};
  GgufImage image;
  in.TakeBytes(4);
  image.version = in.Take<uint32_t>();
  image.tensors.resize(in.Take<uint64_t>());
  image.values.resize(in.Take<uint64_t>());
  for (Value& value : image.values) {
    value.key = in.TakeText();
    value.type = in.Take<uint32_t>();
    value.payload = in.TakePayload(value.type);
  }
  for (Tensor& tensor : image.tensors) {
    tensor.name = in.TakeText();
    tensor.shape.resize(in.Take<uint32_t>());
    for (uint64_t& dim : tensor.shape) {
      dim = in.Take<uint64_t>();
    }
    tensor.type = in.Take<uint32_t>();
    tensor.offset = in.Take<uint64_t>();
  }
  image.data = bytes.substr((in.at + kFileAlignment - 1) / kFileAlignment * kFileAlignment);
  return image;
}

std::string GgufImage::Bytes(std::vector<Field>* fields, std::vector<size_t>* borders) const {
  Output out;
  std::vector<size_t> marks = {0};
  out.bytes = "GGUF";
  out.fields.push_back({"magic", 0, 4});
  out.Put("version", version);
  out.Put("tensor count", uint64_t{tensors.size()});
  out.Put("metadata count", uint64_t{values.size()});
  for (const Value& value : values) {
    marks.push_back(out.bytes.size());
    out.PutText("key " + value.key, value.key);
    out.Put(value.key + " type", value.type);
    out.PutPayload(value);
  }
  for (const Tensor& tensor : tensors) {
    marks.push_back(out.bytes.size());
    out.PutText("tensor name " + tensor.name, tensor.name);
    out.Put(tensor.name + " dimensions", static_cast<uint32_t>(tensor.shape.size()));
    for (const uint64_t dim : tensor.shape) {
      out.Put(tensor.name + " dimension", dim);
    }
    out.Put(tensor.name + " type", tensor.type);
    out.Put(tensor.name + " offset", tensor.offset);
  }
  marks.push_back(out.bytes.size());
  out.bytes.resize((out.bytes.size() + alignment - 1) / alignment * alignment);
  marks.push_back(out.bytes.size());
  out.bytes += data;
  if (fields != nullptr) {
    *fields = std::move(out.fields);
  }
  if (borders != nullptr) {
    *borders = std::move(marks);
  }
  return out.bytes;
}

GgufImage::Value& GgufImage::At(const std::string& key) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const Value& value) { return value.key == key; });
  if (found != values.end()) {
    return *found;
  }
  values.push_back({key, 0, ""});
  return values.back();
}

GgufImage::Tensor& GgufImage::TensorAt(const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return tensor.name == name; });
}

void GgufImage::Remove(const std::string& key) {
  std::erase_if(values, [&](const Value& value) { return value.key == key; });
}

void GgufImage::AddVector(const std::string& name, uint64_t size) {
  data.resize((data.size() + kFileAlignment - 1) / kFileAlignment * kFileAlignment);
  tensors.push_back({name, {size}, 0, data.size()});
  data.append(size * sizeof(float), '\0');
}

void GgufImage::SetScalar(const std::string& key, uint32_t type, const void* value, size_t size) {
  Value& entry = At(key);
  entry.type = type;
  entry.payload = std::string(static_cast<const char*>(value), size);
}

void GgufImage::SetText(const std::string& key, const std::string& text) {
  Output out;
  out.PutText("", text);
  Value& value = At(key);
  value.type = kString;
  value.payload = out.bytes;
}

void GgufImage::SetTexts(const std::string& key, const std::vector<std::string>& texts) {
  Output out;
  out.Put("", kString);
  out.Put("", uint64_t{texts.size()});
  for (const std::string& text : texts) {
    out.PutText("", text);
  }
  Value& value = At(key);
  value.type = kArray;
  value.payload = out.bytes;
}

void GgufImage::SetI32s(const std::string& key, const std::vector<int32_t>& numbers) {
  Value& value = At(key);
  value.type = kArray;
  value.payload = ArrayPayload(5, numbers);
}

void GgufImage::SetF32s(const std::string& key, const std::vector<float>& numbers) {
  Value& value = At(key);
  value.type = kArray;
  value.payload = ArrayPayload(6, numbers);
}

std::vector<std::string> GgufImage::Texts(const std::string& key) {
  Input in{At(key).payload};
  in.TakeBytes(4);
  std::vector<std::string> texts(in.Take<uint64_t>());
  for (std::string& text : texts) {
    text = in.TakeText();
  }
  return texts;
}

std::vector<int32_t> GgufImage::I32s(const std::string& key) { return Numbers<int32_t>(At(key).payload); }

TempFile::TempFile(const std::string& name)
    : path_(std::filesystem::temp_directory_path() / ("kvant_" + std::to_string(getpid()) + "_" + name)) {}

TempFile::~TempFile() { std::filesystem::remove(path_); }

// Over the old bytes: a file that is cut to nothing first is flushed to the disk by some file systems, each time.
void TempFile::Write(const std::string& bytes) const {
  const auto mode = std::filesystem::exists(path_) ? std::ios::in | std::ios::out : std::ios::out;
  std::ofstream(path_, mode | std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::filesystem::resize_file(path_, bytes.size());
}

}  // namespace kvant::test
