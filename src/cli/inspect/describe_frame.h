#pragma once

#include <string>

#include "cli/console.h"
#include "kvant/wire/frame.h"

namespace kvant::cli {

/// "0x0123456789abcdef".
std::string Hex64(uint64_t value);

/// What the frame's payload says, whatever its type; empty where it cannot be decoded.
Json DescribePayload(const wire::FrameView& frame);

}  // namespace kvant::cli
