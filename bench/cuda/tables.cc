#include "tables.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace kvant::cuda_bench {
namespace {

using kernels::cuda::Measured;
using kernels::cuda::MeasuredArm;

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const MeasuredArm& Find(const Measured& measured, const std::string& name) {
  const auto arm =
      std::find_if(measured.arms.begin(), measured.arms.end(), [&](const MeasuredArm& a) { return a.name == name; });
  if (arm == measured.arms.end()) {
    std::fprintf(stderr, "no arm %s\n", name.c_str());
    std::exit(1);
  }
  return *arm;
}

double SpreadOf(const MeasuredArm& arm) {
  const auto [low, high] = std::minmax_element(arm.seconds.begin(), arm.seconds.end());
  return (*high - *low) / MedianOf(arm.seconds) * 100;
}

void PrintDevice(const Measured& measured) {
  std::printf("%s, %.0f MHz SM, %.0f MHz memory, medians of %zu interleaved rounds\n", measured.device.c_str(),
              measured.sm_mhz, measured.memory_mhz, measured.arms[0].seconds.size());
}

}  // namespace

Measured MustMeasure(Result<Measured> measured) {
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().message().c_str());
    std::exit(measured.status().code() == StatusCode::kNotFound ? 77 : 1);
  }
  return std::move(measured).value();
}

double MedianOf(const Measured& measured, const std::string& name) { return MedianOf(Find(measured, name).seconds); }
double BytesOf(const Measured& measured, const std::string& name) {
  return static_cast<double>(Find(measured, name).bytes);
}

// limit: the roofline, and what of the first arm's speed-up it leaves; share: of a read of the same bytes.
void PrintAttention(const Measured& measured) {
  PrintDevice(measured);
  std::printf("%-20s %9s %7s %9s %8s %9s %6s %8s %8s %8s  %s\n", "format", "us", "spread", "MB", "GB/s", "read GB/s",
              "share", "limit us", "x first", "x most", "error");
  const MeasuredArm& first = measured.arms[0];
  for (const MeasuredArm& arm : measured.arms) {
    const double seconds = MedianOf(arm.seconds);
    const double read = MedianOf(arm.read_seconds);
    const double bytes = static_cast<double>(arm.bytes);
    std::printf("%-20s %9.2f %6.1f%% %9.2f %8.1f %9.1f %6.3f %8.2f %8.2f %8.2f  %.1e\n", arm.name.c_str(),
                seconds * 1e6, SpreadOf(arm), bytes / 1e6, bytes / seconds / 1e9, bytes / read / 1e9, read / seconds,
                arm.bound_seconds * 1e6, MedianOf(first.seconds) / seconds, first.bound_seconds / arm.bound_seconds,
                arm.error);
  }
  std::fflush(stdout);
}

// limit: the copy's rate at the bytes the arm moves.
void PrintPages(const Measured& measured) {
  PrintDevice(measured);
  std::printf("%-30s %9s %7s %13s %11s %9s %9s\n", "arm", "us", "spread", "payload GB/s", "moved GB/s", "limit us",
              "x memcpy");
  const MeasuredArm& copy = measured.arms[0];
  const double copy_rate = static_cast<double>(copy.bytes) / MedianOf(copy.seconds);
  for (const MeasuredArm& arm : measured.arms) {
    const double seconds = MedianOf(arm.seconds);
    const double rate = static_cast<double>(arm.bytes) / seconds;
    std::printf("%-30s %9.1f %6.1f%% %13.1f %11.1f %9.1f %9.2f\n", arm.name.c_str(), seconds * 1e6, SpreadOf(arm),
                rate / 1e9, static_cast<double>(arm.moved) / seconds / 1e9, arm.bound_seconds * 1e6, rate / copy_rate);
  }
  std::fflush(stdout);
}

}  // namespace kvant::cuda_bench
