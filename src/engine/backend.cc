#include "kvant/engine/backend.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <llama.h>

#include <filesystem>
#include <mutex>
#include <optional>

#include "kvant/base/check.h"

namespace kvant::engine {
namespace {

std::mutex g_log_mutex;
std::string g_last_error;

void Log(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) {
    const std::lock_guard lock(g_log_mutex);
    g_last_error = text;
    while (!g_last_error.empty() && g_last_error.back() == '\n') {
      g_last_error.pop_back();
    }
  }
}

std::string VariantFile(kernels::Isa isa) {
  switch (isa) {
    case kernels::Isa::kScalar: return "libggml-cpu.so";
    case kernels::Isa::kAvx2: return "libggml-cpu-avx2.so";
    case kernels::Isa::kAvx512Vnni: return "libggml-cpu-avx512vnni.so";
  }
  return "";
}

// ggml's registry is one for the process, and so is the variant in it.
Result<ggml_backend_reg_t> LoadVariant(const BackendOptions& options) {
  static std::mutex mutex;
  static std::optional<kernels::Isa> loaded_isa;
  static ggml_backend_reg_t loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded_isa) {
    if (*loaded_isa != options.isa) {
      return Status(StatusCode::kInvalidArgument, "this process already runs ggml's " +
                                                      std::string(kernels::IsaName(*loaded_isa)) + " variant, not " +
                                                      std::string(kernels::IsaName(options.isa)));
    }
    return loaded;
  }
  SilenceGgml();
  const std::filesystem::path path = std::filesystem::absolute(options.directory) / VariantFile(options.isa);
  if (!std::filesystem::exists(path)) {
    return Status(StatusCode::kNotFound, "no ggml backend " + path.string());
  }
  loaded = ggml_backend_load(path.c_str());
  if (loaded == nullptr) {
    return Status(StatusCode::kInternal, "ggml could not load " + path.string() + ": " + TakeGgmlError());
  }
  loaded_isa = options.isa;
  llama_backend_init();
  return loaded;
}

template <typename Function>
Function* Find(ggml_backend_reg_t registry, const char* name) {
  auto* function = reinterpret_cast<Function*>(ggml_backend_reg_get_proc_address(registry, name));
  KVANT_CHECK(function != nullptr, "the pinned ggml exports this function");
  return function;
}

}  // namespace

struct Backend::Pool {
  ggml_threadpool_t threads = nullptr;
  decltype(&ggml_threadpool_free) free = nullptr;
};

void SilenceGgml() {
  ggml_log_set(Log, nullptr);
  llama_log_set(Log, nullptr);
}

std::string TakeGgmlError() {
  const std::lock_guard lock(g_log_mutex);
  return std::exchange(g_last_error, {});
}

std::string GgmlVersion() { return ggml_version(); }

Result<std::unique_ptr<Backend>> Backend::Create(const BackendOptions& options) {
  if (options.num_threads < 1 || options.num_threads > GGML_MAX_N_THREADS) {
    return Status(StatusCode::kInvalidArgument, "threads must be from 1 to " + std::to_string(GGML_MAX_N_THREADS) +
                                                    ", not " + std::to_string(options.num_threads));
  }
  KVANT_ASSIGN_OR_RETURN(ggml_backend_reg_t registry, LoadVariant(options));
  ggml_backend_t backend = ggml_backend_dev_init(ggml_backend_reg_dev_get(registry, 0), nullptr);
  if (backend == nullptr) {
    return Status(StatusCode::kInternal, "ggml could not start its CPU device: " + TakeGgmlError());
  }
  ggml_threadpool_params params = ggml_threadpool_params_default(options.num_threads);
  params.poll = 0;  // idle threads sleep: other pools and engines share the cores
  auto threads = std::make_unique<Pool>();
  threads->threads = Find<decltype(ggml_threadpool_new)>(registry, "ggml_threadpool_new")(&params);
  threads->free = Find<decltype(ggml_threadpool_free)>(registry, "ggml_threadpool_free");
  Find<void(ggml_backend_t, int)>(registry, "ggml_backend_set_n_threads")(backend, options.num_threads);
  Find<decltype(ggml_backend_cpu_set_threadpool)>(registry, "ggml_backend_cpu_set_threadpool")(backend,
                                                                                               threads->threads);
  std::unique_ptr<Backend> result(new Backend(options, backend, std::move(threads)));
  const auto stop = [](void* self) { return static_cast<Backend*>(self)->failed(); };
  Find<void(ggml_backend_t, ggml_abort_callback, void*)>(registry, "ggml_backend_set_abort_callback")(backend, stop,
                                                                                                      result.get());
  return result;
}

Backend::Backend(const BackendOptions& options, ggml_backend* backend, std::unique_ptr<Pool> threads)
    : options_(options), backend_(backend), threads_(std::move(threads)), pool_(options.num_threads) {}

Backend::~Backend() {
  ggml_backend_free(backend_);
  threads_->free(threads_->threads);
}

void Backend::Fail(Status status) {
  if (!claimed_.exchange(true)) {
    failure_ = std::move(status);
    failed_.store(true, std::memory_order_release);
  }
}

Status Backend::Compute(ggml_cgraph* graph) {
  const ggml_status outcome = ggml_backend_graph_compute(backend_, graph);
  if (failed()) {
    failed_ = false;
    claimed_ = false;
    return std::exchange(failure_, OkStatus());
  }
  if (outcome != GGML_STATUS_SUCCESS) {
    return {StatusCode::kInternal, "ggml could not compute a graph: " + TakeGgmlError()};
  }
  return OkStatus();
}

}  // namespace kvant::engine
