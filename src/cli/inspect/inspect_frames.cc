#include "cli/inspect/inspect_frames.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "cli/format.h"
#include "cli/inspect/describe_frame.h"
#include "cli/inspect/frame_tables.h"
#include "kvant/transfer/audit.h"
#include "kvant/transfer/frame_file.h"

namespace kvant::cli {
namespace {

Json FaultJson(const Status& fault) { return {{"code", StatusCodeName(fault.code())}, {"message", fault.message()}}; }

Json FaultsJson(const std::vector<Status>& faults) {
  Json json = Json::array();
  for (const Status& fault : faults) {
    json.push_back(FaultJson(fault));
  }
  return json;
}

constexpr size_t kMaxListed = 4096;  // more frames are looked at and counted, but would fill the report

class FramesInspector {
 public:
  FramesInspector(std::string path, uint64_t max_frame_bytes)
      : path_(std::move(path)), max_frame_bytes_(max_frame_bytes) {}

  Inspection Run() {
    Result<transfer::FrameFile> file = transfer::FrameFile::Open(path_, max_frame_bytes_);
    std::vector<Status> faults;
    uint64_t num_bytes = 0;
    if (file.ok()) {
      num_bytes = file->num_bytes();
      faults = TakeFrames(*file);
    } else {
      faults.push_back(file.status());
    }
    num_faults_ += faults.size();
    Json json = {{"file", path_},
                 {"kind", "frames"},
                 {"bytes", num_bytes},
                 {"num_frames", num_frames_},
                 {"frames", std::move(frames_)},
                 {"errors", FaultsJson(faults)}};
    std::string text = FramesText(json);
    return {std::move(json), std::move(text), num_faults_};
  }

 private:
  // Returns what is wrong with the file as a whole.
  std::vector<Status> TakeFrames(transfer::FrameFile& file) {
    while (true) {
      const uint64_t offset = file.offset();
      const Result<std::optional<Buffer>> bytes = file.Next();
      if (!bytes.ok()) {
        const bool larger = bytes.status().code() == StatusCode::kCapacityExceeded;
        Add({{"offset", offset}}, {larger ? bytes.status().WithContext("--max-frame-mb") : bytes.status()});
      } else if (!*bytes) {
        break;
      } else {
        TakeFrame(offset, std::as_const(**bytes).bytes());
      }
    }
    std::vector<Status> faults = audit_.End();
    if (num_unlisted_faults_ > 0) {
      faults.emplace_back(StatusCode::kCapacityExceeded,
                          fmt::format("{} errors in frames after the first {}, which alone are listed",
                                      num_unlisted_faults_, kMaxListed));
    }
    if (file.offset() < file.num_bytes()) {
      faults.emplace_back(StatusCode::kCorruption,
                          fmt::format("no frame can be found after byte {} of {}", file.offset(), file.num_bytes()));
    }
    return faults;
  }

  void TakeFrame(uint64_t offset, std::span<const std::byte> bytes) {
    wire::FrameExamination found = wire::ExamineFrame(bytes);
    Json json = {{"offset", offset}, {"bytes", bytes.size()}};
    if (bytes.size() >= wire::kHeaderBytes) {
      json.update(
          {{"type", wire::FrameTypeName(found.header.type)},
           {"version", found.version},
           {"session", Hex64(found.header.session)},
           {"layer", found.header.layer},
           {"checksum", {{"stored", Hex64(found.stored_checksum)}, {"computed", Hex64(found.computed_checksum)}}}});
    }
    if (found.view) {
      json["content"] = DescribePayload(*found.view);
      for (Status& fault : audit_.Take(*found.view)) {
        found.faults.push_back(std::move(fault));
      }
    }
    Add(std::move(json), found.faults);
  }

  void Add(Json frame, const std::vector<Status>& faults) {
    num_faults_ += faults.size();
    ++num_frames_;
    if (frames_.size() < kMaxListed) {
      frame["errors"] = FaultsJson(faults);
      frames_.push_back(std::move(frame));
    } else {
      num_unlisted_faults_ += faults.size();
    }
  }

  const std::string path_;
  const uint64_t max_frame_bytes_;
  transfer::SessionAudit audit_;
  Json frames_ = Json::array();
  uint64_t num_frames_ = 0;
  uint64_t num_faults_ = 0;
  uint64_t num_unlisted_faults_ = 0;
};

}  // namespace

Inspection InspectFrames(const std::string& path, uint64_t max_frame_bytes) {
  return FramesInspector(path, max_frame_bytes).Run();
}

}  // namespace kvant::cli
