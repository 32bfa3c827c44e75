#include "unit/gguf/llama_child.h"

#include <fcntl.h>
#include <ggml-backend.h>
#include <llama.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

#include "support/gguf_image.h"

namespace kvant::engine {
namespace {

constexpr unsigned kSecondsPerFile = 60;
constexpr size_t kMaxWords = 400;

std::string last_error;  // libllama's, in the child

void KeepErrors(ggml_log_level level, const char* text, void* /*context*/) {
  if (level == GGML_LOG_LEVEL_ERROR) {
    last_error = text;
  }
}

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ModelPtr = std::unique_ptr<llama_model, FreeModel>;

ModelPtr LoadModel(const std::string& path, bool vocab_only) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocab_only;
  return ModelPtr(llama_model_load_from_file(path.c_str(), params));
}

std::vector<llama_token> Tokenize(const llama_model* model) {
  const std::string text = "Hello, 12 w\xC3\xB6rlds\n<|im_start|>\xF0\x9F\x99\x82\t\x01";
  std::vector<llama_token> tokens(4 * text.size());
  const llama_vocab* vocab = llama_model_get_vocab(model);
  const int32_t count = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                       static_cast<int32_t>(tokens.size()), true, true);
  tokens.resize(static_cast<size_t>(std::max(count, 0)));
  char piece[1024];
  for (const llama_token token : tokens) {
    llama_token_to_piece(vocab, token, piece, sizeof(piece), 0, true);
  }
  return tokens;
}

bool Decode(llama_model* model, std::vector<llama_token> tokens) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 256;
  params.n_batch = 32;
  params.n_ubatch = 32;
  params.n_threads = 1;
  params.n_threads_batch = 1;
  const std::unique_ptr<llama_context, FreeContext> context(llama_init_from_model(model, params));
  if (context == nullptr) {
    return false;
  }
  tokens.resize(std::min<size_t>(tokens.size(), 5));
  return tokens.empty() ||
         llama_decode(context.get(), llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()))) == 0;
}

LlamaFate Load(const std::string& path) {
  const ModelPtr vocabulary = LoadModel(path, true);
  if (vocabulary == nullptr) {
    return LlamaFate::kRefused;
  }
  const std::vector<llama_token> tokens = Tokenize(vocabulary.get());
  const ModelPtr model = LoadModel(path, false);
  return model != nullptr && Decode(model.get(), tokens) ? LlamaFate::kLoaded : LlamaFate::kRefused;
}

std::string Tail(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return text.substr(text.size() - std::min(text.size(), kMaxWords));
}

// Never returns. Tells the fate of each file by one letter, its words through `words_path`. An exception that leaves
// libllama's C interface ends the process, too.
[[noreturn]] void RunChild(int channel, size_t first, size_t count, const std::string& words_path,
                           const std::function<std::string(size_t)>& bytes_of) noexcept {
  dup2(open(words_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  setenv("GGML_NO_BACKTRACE", "1", 1);
  llama_log_set(KeepErrors, nullptr);
  ggml_backend_load(KVANT_TEST_CPU_BACKEND);
  const test::TempFile file("child.gguf");
  for (size_t i = first; i < count; ++i) {
    file.Write(bytes_of(i));
    alarm(kSecondsPerFile);
    last_error.clear();
    const LlamaFate fate = Load(file.path());
    std::string line(1, static_cast<char>(fate));
    line += last_error.substr(0, kMaxWords);
    std::replace(line.begin(), line.end(), '\n', ' ');
    line += '\n';
    if (write(channel, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      break;
    }
  }
  unlink(file.path().c_str());
  _exit(0);
}

std::string ReadAll(int channel) {
  std::string text;
  char buffer[4096];
  for (ssize_t size = read(channel, buffer, sizeof(buffer)); size > 0; size = read(channel, buffer, sizeof(buffer))) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

void AddReports(const std::string& lines, std::vector<LlamaReport>& reports) {
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    reports.push_back({static_cast<LlamaFate>(lines[at]), lines.substr(at + 1, end - at - 1)});
    at = end + 1;
  }
}

}  // namespace

std::vector<LlamaReport> LoadInChildren(size_t count, const std::function<std::string(size_t)>& bytes_of) {
  const test::TempFile words("child.err");
  std::vector<LlamaReport> reports;
  while (reports.size() < count) {
    int channel[2];
    if (pipe(channel) != 0) {
      break;
    }
    const pid_t child = fork();
    if (child == 0) {
      close(channel[0]);
      RunChild(channel[1], reports.size(), count, words.path(), bytes_of);
    }
    close(channel[1]);
    AddReports(ReadAll(channel[0]), reports);
    close(channel[0]);
    waitpid(child, nullptr, 0);
    if (reports.size() < count) {
      reports.push_back({LlamaFate::kDied, Tail(words.path())});
    }
  }
  return reports;
}

}  // namespace kvant::engine
