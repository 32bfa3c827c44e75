#pragma once

namespace kvant::cli {

/// From now on the first SIGINT or SIGTERM asks for an end in order, and the second one ends the process.
void CatchInterrupts();

/// Whether an end was asked for.
bool Interrupted();

}  // namespace kvant::cli
