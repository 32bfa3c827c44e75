#include "support/gguf_writer.h"

#include <cstdio>

namespace kvant::test {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

bool WriteAll(std::FILE* file, const void* data, size_t size) {
  return size == 0 || std::fwrite(data, 1, size, file) == size;
}

}  // namespace

GgufWriter::GgufWriter() : metadata_(gguf_init_empty()) {}

void GgufWriter::Declare(const std::string& name, std::span<const int64_t> shape) {
  GgmlPtr holder(ggml_init({.mem_size = ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  ggml_tensor* tensor = ggml_new_tensor(holder.get(), GGML_TYPE_F32, static_cast<int>(shape.size()), shape.data());
  ggml_set_name(tensor, name.c_str());
  gguf_add_tensor(metadata_.get(), tensor);
  tensors_.push_back(tensor);
  holders_.push_back(std::move(holder));
}

Status GgufWriter::Write(const std::string& path, const Fill& fill) {
  std::vector<char> head(gguf_get_meta_size(metadata_.get()));
  gguf_get_meta_data(metadata_.get(), head.data());
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr || !WriteAll(file.get(), head.data(), head.size())) {
    return {StatusCode::kIoError, "cannot write " + path};
  }
  const size_t alignment = gguf_get_alignment(metadata_.get());
  for (const ggml_tensor* tensor : tensors_) {
    std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
    KVANT_RETURN_IF_ERROR(fill(tensor->name, values, static_cast<size_t>(tensor->ne[0])));
    const size_t bytes = values.size() * sizeof(float);
    const std::vector<char> padding((alignment - bytes % alignment) % alignment);
    if (!WriteAll(file.get(), values.data(), bytes) || !WriteAll(file.get(), padding.data(), padding.size())) {
      return {StatusCode::kIoError, "cannot write " + path};
    }
  }
  return std::fflush(file.get()) == 0 ? OkStatus() : Status(StatusCode::kIoError, "cannot write " + path);
}

}  // namespace kvant::test
