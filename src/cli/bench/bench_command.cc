#include <memory>

#include "cli/bench/bench.h"
#include "kvant/codec/token_codec.h"

namespace kvant::cli {

CLI::App* AddBench(CLI::App& bench, const std::string& name, const std::string& description, Work work, Work* chosen) {
  CLI::App* command = bench.add_subcommand(name, description)->fallthrough();
  command->callback([work = std::move(work), chosen] { *chosen = work; });
  command->footer(
      "The arms are called in turn (A B C A B C ...) in one process, after a check of what they compute.\n"
      "median: of the calls' rates. spread: upper minus lower quartile, in the same unit.\n"
      "ratio: medians over the first arm's, or over llama.cpp's f16 cache with --compare.");
  return command;
}

void AddHeadDim(CLI::App& command, uint32_t& head_dim) {
  const auto check = [](const std::string& text) {
    return codec::CheckHeadDim(static_cast<uint32_t>(std::stoul(text))).message();
  };
  AddOption(command, "--head-dim", head_dim, "Elements of a row, a multiple of 4")
      ->check(InRange(codec::kMinHeadDim, codec::kMaxHeadDim))
      ->check(check);
}

void AddBenchCommand(Program& program) {
  auto chosen = std::make_shared<Work>();
  CLI::App* bench = program.AddCommand("bench", "Measure the speed of codecs, attention or decoding",
                                       [chosen](Console& console) { return (*chosen)(console); });
  bench->require_subcommand(1);
  AddCodecBench(*bench, chosen.get());
  AddAttentionBench(*bench, chosen.get());
  AddDecodeBench(*bench, chosen.get());
  AddPackBench(*bench, chosen.get());
}

}  // namespace kvant::cli
