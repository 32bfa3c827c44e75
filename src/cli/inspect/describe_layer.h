#pragma once

#include "cli/console.h"
#include "kvant/wire/layer_frame.h"

namespace kvant::cli {

/// A layer as "spectrum", "progressive" or the name of its one codec.
std::string CodecWord(const codec::LayerBlockLayout& layout);

/// Sizes of a frame's parts in bytes, what is absent left out; their sum is the frame's.
Json LayerSections(const wire::LayerView& view);

/// Shape, split, tiers and how KV heads differ in them, bits, sections.
Json DescribeLayer(const wire::LayerView& view);

}  // namespace kvant::cli
