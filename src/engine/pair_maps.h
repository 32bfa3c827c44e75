#pragma once

#include "kvant/engine/engine.h"

namespace kvant::engine {

/// Give a layer's cache the width maps that its prompt asks for: the queries' statistics with those of the keys, all of
/// which are still at fp16. Requires a precision of pair pages, statistics.pairs of every KV head
/// Errors  kModelUnsupported, kInvalidArgument: a head dimension that the precision's pages cannot have
Status ChoosePairMaps(uint32_t layer, const LayerStatistics& statistics, ThreadPool* pool, cache::LayerCache& cache);

}  // namespace kvant::engine
