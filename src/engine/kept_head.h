#pragma once

#include <cstdint>
#include <string>

#include "engine/frames_in_order.h"
#include "engine/new_file.h"
#include "kvant/engine/engine.h"
#include "kvant/engine/tokenizer.h"
#include "kvant/wire/messages.h"

namespace kvant::engine {

inline constexpr uint64_t kKeptSession = 1;  ///< the number in every frame of a file

/// What every kept file begins with: the precision's word, and whose tokens they are.
Status WriteKeptHead(const Engine& engine, const Tokenizer& tokenizer, const codec::Precision& precision,
                     uint32_t num_tokens, NewFile& file);

/// The hello that is due. Errors  of the frame; kMismatch: another model's. All name the path
Result<wire::Hello> TakeKeptHello(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                                  FramesInOrder& file);

}  // namespace kvant::engine
