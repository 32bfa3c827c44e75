#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/inspect/inspect_frames.h"

namespace kvant::cli {
namespace {

struct InspectFlags {
  std::vector<std::string> files;
  uint32_t max_frame_mb = 1024;
};

Status RunInspect(const InspectFlags& flags, Console& console) {
  Json files = Json::array();
  uint64_t num_faults = 0;
  for (const std::string& path : flags.files) {
    Inspection found = InspectFrames(path, uint64_t{flags.max_frame_mb} * 1'000'000);
    console.PrintText((files.empty() ? "" : "\n") + found.text);
    files.push_back(std::move(found.json));
    num_faults += found.num_faults;
  }
  console.PrintJson({{"files", std::move(files)}, {"num_errors", num_faults}});
  return num_faults == 0
             ? OkStatus()
             : Status(StatusCode::kCorruption, fmt::format("{} error{} found", num_faults, num_faults == 1 ? "" : "s"));
}

}  // namespace

void AddInspectCommand(Program& program) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = program.AddCommand("inspect", "Say what saved frames hold, and what is wrong with them",
                                         [flags](Console& console) { return RunInspect(*flags, console); });
  command
      ->add_option("files", flags->files, "Files of frames, one after another, as generate --save-frames writes them")
      ->required();
  AddOption(*command, "--max-frame-mb", flags->max_frame_mb, "Memory for one frame; larger ones are passed over")
      ->check(InRange(uint32_t{1}, uint32_t{65'536}));
}

}  // namespace kvant::cli
