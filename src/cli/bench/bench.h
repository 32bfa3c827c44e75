#pragma once

#include <cstdint>

#include "cli/command.h"

namespace kvant::cli {

/// The benches below `kvant bench`, each with its own flags. A bench that was chosen puts its work into *chosen.
void AddCodecBench(CLI::App& bench, Work* chosen);
void AddAttentionBench(CLI::App& bench, Work* chosen);
void AddDecodeBench(CLI::App& bench, Work* chosen);
void AddPackBench(CLI::App& bench, Work* chosen);

/// A sub-command of `bench` that shares its --json.
CLI::App* AddBench(CLI::App& bench, const std::string& name, const std::string& description, Work work, Work* chosen);

/// --head-dim, which codec::CheckHeadDim must allow.
void AddHeadDim(CLI::App& command, uint32_t& head_dim);

}  // namespace kvant::cli
