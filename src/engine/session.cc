#include "kvant/engine/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/identity.h"
#include "kvant/base/check.h"
#include "kvant/transfer/frame_file.h"
#include "kvant/wire/layer_frame.h"
#include "kvant/wire/messages.h"

namespace kvant::engine {
namespace {

constexpr uint64_t kSessionNumber = 1;

Status IoError(const std::string& what, const std::string& path) {
  return {StatusCode::kIoError, what + " " + path + ": " + std::strerror(errno)};
}

// A file that is renamed into place when it is whole, and removed when it is not.
class NewFile {
 public:
  static Result<NewFile> Create(const std::string& path) {
    NewFile file(path);
    file.fd_ = open(file.partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return file.fd_ < 0 ? Result<NewFile>(IoError("cannot write", file.partial_)) : Result<NewFile>(std::move(file));
  }
  NewFile(NewFile&& other) noexcept
      : path_(std::move(other.path_)), partial_(std::move(other.partial_)), fd_(std::exchange(other.fd_, -1)) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (fd_ >= 0) {
      close(fd_);
      unlink(partial_.c_str());
    }
  }

  Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written <= 0) {
        return IoError("cannot write", partial_);
      }
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return OkStatus();
  }
  Status Finish() {
    const bool written = fsync(fd_) == 0;
    const bool closed = close(std::exchange(fd_, -1)) == 0;
    if (!written || !closed || rename(partial_.c_str(), path_.c_str()) != 0) {
      Status status = IoError("cannot write", path_);
      unlink(partial_.c_str());
      return status;
    }
    return OkStatus();
  }

 private:
  explicit NewFile(const std::string& path) : path_(path), partial_(path + ".partial") {}
  std::string path_;
  std::string partial_;
  int fd_ = -1;
};

Status Write(NewFile& file, Result<Buffer> frame) {
  KVANT_RETURN_IF_ERROR(frame.status());
  return file.Write(std::as_const(*frame).bytes());
}

// The frames of a session, in the order that is due.
class SessionFile {
 public:
  static Result<SessionFile> Open(const std::string& path) {
    Result<transfer::FrameFile> file = transfer::FrameFile::Open(path);
    KVANT_RETURN_IF_ERROR(file.status().WithContext(path));
    return SessionFile(path, std::move(*file));
  }

  /// The next frame, opened, of the type that is due.
  Result<wire::FrameView> Next(wire::FrameType due) {
    ++count_;
    Result<wire::FrameView> frame = Take(due);
    return frame.ok()
               ? frame
               : Result<wire::FrameView>(frame.status().WithContext(path_ + ", frame " + std::to_string(count_)));
  }
  Status End() const {
    return file_.offset() == file_.num_bytes()
               ? OkStatus()
               : Status(StatusCode::kCorruption, path_ + ": bytes after the last frame");
  }

 private:
  SessionFile(std::string path, transfer::FrameFile file) : path_(std::move(path)), file_(std::move(file)) {}

  Result<wire::FrameView> Take(wire::FrameType due) {
    KVANT_ASSIGN_OR_RETURN(bytes_, file_.Next());
    if (!bytes_) {
      return Status(StatusCode::kOutOfRange, "the file ends early");
    }
    KVANT_ASSIGN_OR_RETURN(const wire::FrameView frame, wire::OpenFrame(std::as_const(*bytes_).bytes()));
    if (frame.header.type != due) {
      return Status(StatusCode::kCorruption, std::string("a ")
                                                 .append(wire::FrameTypeName(frame.header.type))
                                                 .append(" frame where a ")
                                                 .append(wire::FrameTypeName(due))
                                                 .append(" frame is due"));
    }
    return frame;
  }

  std::string path_;
  transfer::FrameFile file_;
  uint32_t count_ = 0;
  std::optional<Buffer> bytes_;  ///< of the frame handed out last
};

Status CheckWord(const wire::FrameView& frame, const codec::Precision& kv) {
  KVANT_ASSIGN_OR_RETURN(const std::string kept, wire::DecodeSession(frame));
  const std::string asked = codec::PrecisionWord(kv);
  return kept == asked ? OkStatus() : Status(StatusCode::kMismatch, "kept as " + kept + ", asked for as " + asked);
}

Status CheckHello(const wire::Hello& hello, const Engine& engine, const Tokenizer& tokenizer) {
  std::string difference = wire::DifferenceOf(hello.model, IdentityOf(engine, tokenizer));
  return difference.empty() ? OkStatus()
                            : Status(StatusCode::kMismatch,
                                     "kept of another model (sender is the file, receiver this "
                                     "model): " +
                                         std::move(difference));
}

Status CheckLayer(const wire::LayerView& view, uint32_t layer, const wire::Hello& hello, const codec::Precision& kv) {
  if (view.layer != layer || view.layout.shape != hello.model.shape ||
      view.layout.split.num_positions() != hello.num_prompt_tokens) {
    return {StatusCode::kCorruption, "not layer " + std::to_string(layer) + " of what the hello says"};
  }
  const uint32_t head_dim = hello.model.shape.head_dim;
  if (kv.pairs && view.layout.pairs &&
      (view.layout.pairs->format != kv.pairs->FormatOf(head_dim) ||
       view.layout.pairs->rotated_values != kv.pairs->rotate_values)) {
    return {StatusCode::kMismatch, "kept in pages of another format than " + codec::PrecisionWord(kv) + " has"};
  }
  return OkStatus();
}

Status CheckTokens(const wire::Finish& finish, const wire::Hello& hello, uint32_t vocab_size) {
  const bool known = std::all_of(finish.prompt_tokens.begin(), finish.prompt_tokens.end(),
                                 [&](int32_t token) { return static_cast<uint32_t>(token) < vocab_size; });
  return known && finish.prompt_tokens.size() == hello.num_prompt_tokens
             ? OkStatus()
             : Status(StatusCode::kCorruption, "its tokens are not those of its layers");
}

}  // namespace

Status CheckSessionPath(const std::string& path) { return NewFile::Create(path).status(); }

Status SaveSession(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                   const cache::Sequence& sequence, std::span<const int32_t> tokens) {
  KVANT_CHECK(tokens.size() == sequence.num_tokens() && !tokens.empty(), "a token for each position");
  if (sequence.precision().is_progressive()) {
    return {StatusCode::kPrecisionUnsupported, "a session is not kept in the progressive code"};
  }
  const auto count = static_cast<uint32_t>(tokens.size());
  KVANT_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  KVANT_RETURN_IF_ERROR(Write(file, wire::EncodeSession(kSessionNumber, codec::PrecisionWord(sequence.precision()))));
  KVANT_RETURN_IF_ERROR(Write(file, wire::EncodeHello(kSessionNumber, {.model = IdentityOf(engine, tokenizer),
                                                                       .precision = sequence.precision(),
                                                                       .num_prompt_tokens = count,
                                                                       .num_context_tokens = count})));
  for (uint32_t layer = 0; layer < sequence.shape().num_layers; ++layer) {
    const cache::LayerCache& cache = sequence.layer(layer);
    KVANT_ASSIGN_OR_RETURN(wire::BlockFrame frame, wire::AllocateLayer(kSessionNumber, layer, cache.block_layout()));
    cache.ExportBlock(frame.block(), nullptr);
    KVANT_RETURN_IF_ERROR(Write(file, std::move(frame).Seal()));
  }
  KVANT_RETURN_IF_ERROR(Write(file, wire::EncodeFinish(kSessionNumber, {.prompt_tokens = {tokens.begin(), tokens.end()},
                                                                        .first_position = count})));
  return file.Finish();
}

Result<Session> LoadSession(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                            const codec::Precision& kv, cache::MemoryAccount* account) {
  KVANT_ASSIGN_OR_RETURN(SessionFile file, SessionFile::Open(path));
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView kept, file.Next(wire::FrameType::kSession));
  const Status word = CheckWord(kept, kv);
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView first, file.Next(wire::FrameType::kHello));
  Result<wire::Hello> decoded = wire::DecodeHello(first);
  KVANT_RETURN_IF_ERROR(decoded.status().WithContext(path));
  const wire::Hello& hello = *decoded;
  KVANT_RETURN_IF_ERROR(CheckHello(hello, engine, tokenizer).WithContext(path));
  KVANT_RETURN_IF_ERROR(word.WithContext(path));
  Session session{engine.NewSequence(kv, account), {}};
  for (uint32_t layer = 0; layer < hello.model.shape.num_layers; ++layer) {
    const std::string where = path + ", layer " + std::to_string(layer);
    KVANT_ASSIGN_OR_RETURN(const wire::FrameView frame, file.Next(wire::FrameType::kLayer));
    const Result<wire::LayerView> view = wire::DecodeLayer(frame);
    KVANT_RETURN_IF_ERROR(view.status().WithContext(where));
    KVANT_RETURN_IF_ERROR(CheckLayer(*view, layer, hello, kv).WithContext(where));
    KVANT_RETURN_IF_ERROR(session.sequence.layer(layer).AdoptBlock(view->layout, view->block).WithContext(where));
  }
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView last, file.Next(wire::FrameType::kFinish));
  Result<wire::Finish> finish = wire::DecodeFinish(last);
  KVANT_RETURN_IF_ERROR(finish.status().WithContext(path));
  KVANT_RETURN_IF_ERROR(CheckTokens(*finish, hello, engine.model().params().vocab_size).WithContext(path));
  KVANT_RETURN_IF_ERROR(file.End());
  session.tokens = std::move(finish->prompt_tokens);
  return session;
}

}  // namespace kvant::engine
