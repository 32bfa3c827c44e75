#pragma once

#include "kvant/engine/engine.h"
#include "kvant/engine/tokenizer.h"
#include "kvant/wire/identity.h"

namespace kvant::engine {

/// What another engine must share with this one to go on with its KV.
wire::ModelIdentity IdentityOf(const Engine& engine, const Tokenizer& tokenizer);

/// Whether a file that was kept of a model is of this one. Errors  kMismatch with every differing field
Status CheckKeptOf(const wire::ModelIdentity& kept, const Engine& engine, const Tokenizer& tokenizer);

}  // namespace kvant::engine
