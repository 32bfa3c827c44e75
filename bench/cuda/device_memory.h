#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvant/base/status.h"

/// For the GPU test and benches: memory that is given back, and errors that end what is being measured or tested.
namespace kvant::cuda_test {

/// What went wrong on the GPU; caught where a bench or program begins.
class DeviceError : public std::runtime_error {
 public:
  explicit DeviceError(Status status) : std::runtime_error(status.message()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw DeviceError({StatusCode::kInternal, std::string(what) + ": " + cudaGetErrorString(error)});
  }
}
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) throw DeviceError(result.status());
  return std::move(result).value();
}
inline void Must(const Status& status) {
  if (!status.ok()) throw DeviceError(status);
}

/// Device memory between two canaries of 256 bytes each.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    Check(cudaMalloc(&memory_, bytes + 2 * kCanary), "cudaMalloc");
    Check(cudaMemset(memory_, kPattern, kCanary), "canary");
    Check(cudaMemset(memory_ + kCanary + bytes, kPattern, kCanary), "canary");
    Check(cudaMemset(memory_ + kCanary, 0, bytes), "cudaMemset");
  }
  template <typename T>
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size() * sizeof(T)) {
    Check(cudaMemcpy(memory_ + kCanary, host.data(), bytes_, cudaMemcpyHostToDevice), "upload");
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(memory_); }

  template <typename T = std::byte>
  T* data() const {
    return reinterpret_cast<T*>(memory_ + kCanary);
  }
  size_t size() const { return bytes_; }
  void Fill(int byte) { Check(cudaMemset(memory_ + kCanary, byte, bytes_), "fill"); }

  template <typename T>
  std::vector<T> Download() const {
    std::vector<T> host(bytes_ / sizeof(T));
    Check(cudaMemcpy(host.data(), memory_ + kCanary, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return host;
  }
  /// Nothing was written before or behind the buffer.
  bool CanariesIntact() const {
    std::vector<unsigned char> ends(2 * kCanary);
    Check(cudaMemcpy(ends.data(), memory_, kCanary, cudaMemcpyDeviceToHost), "canary");
    Check(cudaMemcpy(ends.data() + kCanary, memory_ + kCanary + bytes_, kCanary, cudaMemcpyDeviceToHost), "canary");
    for (const unsigned char byte : ends) {
      if (byte != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kCanary = 256;
  static constexpr int kPattern = 0xA5;
  char* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvant::cuda_test
