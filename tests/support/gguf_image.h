#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvant::test {

/// A GGUF file taken apart, to be put together again with faults. Its own reader: trusts the file, shares no code with
/// the validator or ggml.
struct GgufImage {
  struct Value {
    std::string key;
    uint32_t type = 0;
    std::string payload;  ///< as stored; an array's begins with element type and count
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    uint32_t type = 0;
    uint64_t offset = 0;
  };
  /// A count, length, type, dimension, offset or scalar: what a byte patcher aims at.
  struct Field {
    std::string name;
    size_t offset = 0;
    size_t size = 0;
  };

  uint32_t version = 3;
  uint64_t alignment = 32;  ///< padding before the data; independent of general.alignment
  std::vector<Value> values;
  std::vector<Tensor> tensors;
  std::string data;

  static GgufImage Read(const std::string& path);

  /// The file. Fields and the offsets where a section begins or ends, if asked for.
  std::string Bytes(std::vector<Field>* fields = nullptr, std::vector<size_t>* borders = nullptr) const;

  /// The entry, added where it is missing.
  Value& At(const std::string& key);
  Tensor& TensorAt(const std::string& name);
  void Remove(const std::string& key);
  void AddVector(const std::string& name, uint64_t size);  ///< f32, data and all

  void SetU32(const std::string& key, uint32_t value) { SetScalar(key, 4, &value, sizeof(value)); }
  void SetI32(const std::string& key, int32_t value) { SetScalar(key, 5, &value, sizeof(value)); }
  void SetF32(const std::string& key, float value) { SetScalar(key, 6, &value, sizeof(value)); }
  void SetBool(const std::string& key, uint8_t value) { SetScalar(key, 7, &value, sizeof(value)); }
  void SetText(const std::string& key, const std::string& text);
  void SetTexts(const std::string& key, const std::vector<std::string>& texts);
  void SetI32s(const std::string& key, const std::vector<int32_t>& values);
  void SetF32s(const std::string& key, const std::vector<float>& values);
  std::vector<std::string> Texts(const std::string& key);
  std::vector<int32_t> I32s(const std::string& key);

 private:
  void SetScalar(const std::string& key, uint32_t type, const void* value, size_t size);
};

/// A file that is removed with the object.
class TempFile {
 public:
  explicit TempFile(const std::string& name);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& bytes) const;

 private:
  std::string path_;
};

}  // namespace kvant::test
