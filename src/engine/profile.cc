#include "kvant/engine/profile.h"

#include <utility>

#include "engine/kept_head.h"
#include "engine/pair_maps.h"
#include "kvant/base/hash.h"
#include "kvant/engine/prompt_encoder.h"
#include "kvant/wire/maps_frame.h"

namespace kvant::engine {
namespace {

// The same rule, measured of what passes by.
codec::Precision OfThePrompt(codec::Precision precision) {
  precision.maps_of_model = false;
  if (precision.pairs) {
    precision.pairs->map_of_model = false;
  }
  return precision;
}

// Takes the maps that a prompt would have had, and lets the prompt go.
class TakeMaps : public LayerConsumer {
 public:
  TakeMaps(const codec::Precision& precision, ThreadPool* pool) : precision_(precision), pool_(pool) {}

  PromptStatistics wanted() const override {
    return precision_.pairs ? PromptStatistics::kPairs : PromptStatistics::kNone;
  }
  Status LayerDone(uint32_t layer, cache::LayerCache& cache, const LayerStatistics& statistics) override {
    if (precision_.pairs) {
      KVANT_RETURN_IF_ERROR(ChoosePairMaps(layer, statistics, pool_, cache));
      maps_.push_back(cache.maps());
    } else {
      maps_.push_back({{}, {}, cache.MeasureEqualization(pool_)});
    }
    cache.Clear();
    return OkStatus();
  }
  std::vector<codec::LayerMaps> Take() { return std::move(maps_); }

 private:
  const codec::Precision& precision_;
  ThreadPool* pool_;
  std::vector<codec::LayerMaps> maps_;
};

Status CheckLength(const codec::Precision& precision, size_t num_tokens) {
  const size_t needed =
      size_t{precision.num_sinks} + (precision.pairs ? precision.pairs->page_tokens : codec::kMinEqualizationTokens);
  return num_tokens >= needed
             ? OkStatus()
             : Status(StatusCode::kInvalidArgument,
                      "a text of " + std::to_string(num_tokens) + " tokens is too short for the maps of " +
                          codec::PrecisionWord(precision) + ", which need " + std::to_string(needed));
}

Status CheckMaps(const wire::MapsFrame& maps, uint32_t layer, const wire::Hello& hello,
                 const codec::Precision& precision) {
  if (maps.layer != layer || maps.shape != hello.model.shape ||
      maps.maps.pairs.has_value() != precision.pairs.has_value()) {
    return {StatusCode::kCorruption, "not the maps of layer " + std::to_string(layer) + " of what the hello says"};
  }
  const uint32_t head_dim = hello.model.shape.head_dim;
  if (precision.pairs && !maps.maps.pairs->IsOf(*precision.pairs, head_dim)) {
    return {StatusCode::kCorruption, "maps of another format than " + codec::PrecisionWord(precision) + " has"};
  }
  return OkStatus();
}

Result<codec::Precision> PrecisionOf(const wire::FrameView& frame) {
  KVANT_ASSIGN_OR_RETURN(const std::string word, wire::DecodeSession(frame));
  KVANT_ASSIGN_OR_RETURN(const codec::Precision precision, codec::ParsePrecision(word));
  return precision.maps_of_model ? Result<codec::Precision>(precision)
                                 : Status(StatusCode::kCorruption, "no profile: " + word + " has no maps of the model");
}

}  // namespace

uint64_t Profile::Id() const {
  Hasher64 hasher;
  const auto add = [&](const auto& values) { hasher.Update(std::as_bytes(std::span(values))); };
  add(codec::PrecisionWord(precision));
  for (const codec::LayerMaps& maps : layers) {
    for (const codec::WidthMap& map : maps.widths) {
      add(map.widths);
    }
    if (maps.equalization) {
      add(maps.equalization->mean);
      add(maps.equalization->scale);
    }
  }
  return hasher.Digest();
}

Result<Profile> Calibrate(Engine& engine, const codec::Precision& precision, std::span<const int32_t> tokens,
                          const CalibrateOptions& options) {
  if (!precision.maps_of_model) {
    return Status(StatusCode::kInvalidArgument, "precision '" + codec::PrecisionWord(precision) +
                                                    "' has no maps of the model; give map=model with pair pages, "
                                                    "eq=model with tiers");
  }
  KVANT_RETURN_IF_ERROR(CheckLength(precision, tokens.size()));
  cache::MemoryAccount account;
  KVANT_ASSIGN_OR_RETURN(cache::Sequence sequence, engine.NewSequence(OfThePrompt(precision), &account));
  TakeMaps take(precision, &engine.backend().pool());
  PrefillOptions prefill;
  prefill.progress = options.progress;
  prefill.cancelled = options.cancelled;
  std::vector<float> logits;
  KVANT_RETURN_IF_ERROR(engine.Prefill(sequence, tokens, take, prefill, &logits));
  return Profile{precision, take.Take(), static_cast<uint32_t>(tokens.size())};
}

Status SaveProfile(const std::string& path, const Engine& engine, const Tokenizer& tokenizer, const Profile& profile) {
  KVANT_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  KVANT_RETURN_IF_ERROR(WriteKeptHead(engine, tokenizer, profile.precision, profile.num_tokens, file));
  const codec::CacheShape shape = engine.model().cache_shape();
  for (uint32_t layer = 0; layer < profile.layers.size(); ++layer) {
    KVANT_RETURN_IF_ERROR(file.Write(wire::EncodeMaps(kKeptSession, {layer, shape, profile.layers[layer]})));
  }
  return file.Finish();
}

Result<Profile> LoadProfile(const std::string& path, const Engine& engine, const Tokenizer& tokenizer) {
  KVANT_ASSIGN_OR_RETURN(FramesInOrder file, FramesInOrder::Open(path));
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView word, file.Next(wire::FrameType::kSession));
  Result<codec::Precision> precision = PrecisionOf(word);
  KVANT_RETURN_IF_ERROR(AsDamage(precision.status()).WithContext(path));
  KVANT_ASSIGN_OR_RETURN(const wire::Hello hello, TakeKeptHello(path, engine, tokenizer, file));
  Profile profile{*precision, {}, hello.num_prompt_tokens};
  for (uint32_t layer = 0; layer < hello.model.shape.num_layers; ++layer) {
    const std::string where = path + ", layer " + std::to_string(layer);
    KVANT_ASSIGN_OR_RETURN(const wire::FrameView frame, file.Next(wire::FrameType::kMaps));
    Result<wire::MapsFrame> maps = wire::DecodeMaps(frame);
    KVANT_RETURN_IF_ERROR(AsDamage(maps.status()).WithContext(where));
    KVANT_RETURN_IF_ERROR(CheckMaps(*maps, layer, hello, profile.precision).WithContext(where));
    profile.layers.push_back(std::move(maps->maps));
  }
  KVANT_RETURN_IF_ERROR(file.End());
  return profile;
}

}  // namespace kvant::engine
