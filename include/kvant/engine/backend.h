#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "kvant/base/status.h"
#include "kvant/base/thread_pool.h"
#include "kvant/kernels/cpu.h"

struct ggml_backend;
struct ggml_cgraph;

namespace kvant::engine {

struct BackendOptions {
  /// Folder with the ggml-cpu variants ("libggml-cpu.so", "libggml-cpu-avx2.so", "libggml-cpu-avx512vnni.so").
  std::string directory;
  kernels::Isa isa = kernels::BestIsa();  ///< of our kernels and, the nearest variant, of ggml's
  int num_threads = 2;
};

/// ggml's CPU backend: one variant, loaded by its path after our own CPUID check, with a pool of threads that sleep
/// when idle. A process holds one variant: the first Backend decides.
///
/// Threads  one caller of Compute at a time
class Backend {
 public:
  /// Errors  kNotFound names the file; kInvalidArgument for another ISA than the process already loaded
  static Result<std::unique_ptr<Backend>> Create(const BackendOptions& options);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  kernels::Isa isa() const { return options_.isa; }
  int num_threads() const { return options_.num_threads; }
  ggml_backend* handle() const { return backend_; }
  /// For loops outside of graphs (encoding).
  ThreadPool& pool() { return pool_; }

  /// Run a graph. Ops of ours report through Fail; the graph then stops and their Status is returned.
  Status Compute(ggml_cgraph* graph);
  /// From an op on any thread: the first Status wins.
  void Fail(Status status);
  bool failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  struct Pool;
  Backend(const BackendOptions& options, ggml_backend* backend, std::unique_ptr<Pool> threads);

  BackendOptions options_;
  ggml_backend* backend_;
  std::unique_ptr<Pool> threads_;
  ThreadPool pool_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> claimed_{false};
  Status failure_;
};

/// ggml's version ("0.25.3") as linked.
std::string GgmlVersion();

/// Where ggml's and libllama's own messages go; nothing is printed. Called by Backend::Create.
void SilenceGgml();
/// The last error line ggml or libllama logged since the previous call, for our messages; may be empty.
std::string TakeGgmlError();

}  // namespace kvant::engine
