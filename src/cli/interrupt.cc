#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace kvant::cli {
namespace {

std::atomic<bool> g_interrupted{false};

void Interrupt(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void CatchInterrupts() {
  std::signal(SIGINT, Interrupt);
  std::signal(SIGTERM, Interrupt);
}

bool Interrupted() { return g_interrupted.load(); }

}  // namespace kvant::cli
