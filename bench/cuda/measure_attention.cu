#include <algorithm>

#include "clocks.h"
#include "decode_arm.h"

namespace kvant::kernels::cuda {
namespace {

using cuda_bench::DecodeArm;
using cuda_bench::FormatSpec;
using cuda_test::DeviceError;

Result<FormatSpec> FindFormat(const std::string& name, uint32_t head_dim) {
  for (FormatSpec& format : cuda_bench::AllFormats(head_dim)) {
    if (format.name == name) return std::move(format);
  }
  std::string known;
  for (const std::string& format : AttentionFormats()) known += (known.empty() ? "" : ", ") + format;
  return Status{StatusCode::kPrecisionUnsupported, "'" + name + "' is no format of the GPU bench: it has " + known};
}

Measured MeasureArms(const AttentionMeasurement& wanted, const std::vector<FormatSpec>& formats) {
  std::vector<std::unique_ptr<DecodeArm>> arms;
  for (size_t i = 0; i < formats.size(); ++i) {
    arms.push_back(std::make_unique<DecodeArm>(formats[i], wanted.arms[i].kind, wanted));
  }
  cuda_bench::Stopwatch watch;
  std::vector<std::vector<double>> reads(arms.size());
  const auto times = cuda_bench::InTurn(arms.size(), wanted.rounds, [&](size_t arm) {
    const double seconds = arms[arm]->Seconds(watch);
    reads[arm].push_back(arms[arm]->ReadSeconds(watch));
    return seconds;
  });
  Measured measured;
  cuda_bench::ReadDevice(&measured);
  int sms = 0;
  cuda_test::Check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device");
  for (size_t i = 0; i < arms.size(); ++i) {
    reads[i].erase(reads[i].begin());  // the round that warms up
    MeasuredArm arm{arms[i]->name(), times[i], reads[i], arms[i]->bytes(), arms[i]->bytes()};
    arm.bound_seconds = std::max(cuda_bench::Median(reads[i]), arms[i]->alu_cycles() / (sms * measured.sm_mhz * 1e6));
    arm.error = arms[i]->error();
    measured.arms.push_back(std::move(arm));
  }
  return measured;
}

}  // namespace

std::vector<std::string> AttentionFormats() {
  std::vector<std::string> names;
  for (const FormatSpec& format : cuda_bench::AllFormats(128)) names.push_back(format.name);
  return names;
}

Result<Measured> MeasureAttention(const AttentionMeasurement& wanted) {
  std::vector<FormatSpec> formats;
  for (const AttentionArm& arm : wanted.arms) {
    KVANT_ASSIGN_OR_RETURN(FormatSpec format, FindFormat(arm.format, wanted.shape.head_dim));
    formats.push_back(std::move(format));
  }
  DecodeRequest request;
  request.shape = wanted.shape;
  KVANT_RETURN_IF_ERROR(SelectDecode(request).status());  // is there a GPU, and a kernel for the shape
  try {
    return MeasureArms(wanted, formats);
  } catch (const DeviceError& error) {
    return error.status();
  }
}

}  // namespace kvant::kernels::cuda
