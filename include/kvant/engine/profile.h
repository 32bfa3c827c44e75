#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/layer_maps.h"
#include "kvant/engine/engine.h"
#include "kvant/engine/tokenizer.h"

namespace kvant::engine {

/// The maps of a model for one precision, measured once on a text and used for all prompts (design.md decision 6;
/// lab.md section 10): with them equal tokens give equal codes whatever follows, so that prompts share what they
/// begin with.
struct Profile {
  codec::Precision precision;            ///< with map=model or eq=model: whose maps these are
  std::vector<codec::LayerMaps> layers;  ///< [num_layers]
  uint32_t num_tokens = 0;               ///< they were measured on

  /// Equal maps for an equal precision have an equal number.
  uint64_t Id() const;
};

struct CalibrateOptions {
  std::function<void(uint32_t layers_done)> progress;
  std::function<bool()> cancelled;
};

/// Measure a model's maps on a text. `precision` says by which rule; only what maps depend on counts.
///
/// Errors  kInvalidArgument: a precision without maps of the model, or fewer tokens than a map is made of; what Prefill
///         returns
Result<Profile> Calibrate(Engine& engine, const codec::Precision& precision, std::span<const int32_t> tokens,
                          const CalibrateOptions& options);

/// Keep a profile in a file, whole or not at all (docs/format/profile.md). Errors  kIoError with the path
Status SaveProfile(const std::string& path, const Engine& engine, const Tokenizer& tokenizer, const Profile& profile);

/// Errors  kNotFound; kIoError; kCorruption, kOutOfRange …: what OpenFrame and the decoders say, with the frame's
/// place;
///         kMismatch: another model's
Result<Profile> LoadProfile(const std::string& path, const Engine& engine, const Tokenizer& tokenizer);

}  // namespace kvant::engine
