#pragma once

#include "kvant/engine/engine.h"
#include "kvant/engine/tokenizer.h"
#include "kvant/wire/identity.h"

namespace kvant::engine {

/// What another engine must share with this one to go on with its KV.
wire::ModelIdentity IdentityOf(const Engine& engine, const Tokenizer& tokenizer);

}  // namespace kvant::engine
