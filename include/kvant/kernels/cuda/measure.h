#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/kernels/cuda/decode_plan.h"

/// The GPU kernels, timed. Arms are called in turn (A B … B A) in one process, every call meets memory that no cache
/// holds, and what an arm computes is held against the scalar reference before it is timed. Only in builds with
/// KVANT_CUDA=ON: target kvant_cuda_measure.
namespace kvant::kernels::cuda {

/// One thing that was timed.
struct MeasuredArm {
  std::string name;
  std::vector<double> seconds;       ///< of one call, a number a round
  std::vector<double> read_seconds;  ///< a plain read of as many bytes in the same rounds; attention only
  uint64_t bytes = 0;                ///< attention: of the KV that a call reads; else fp16 bytes encoded or decoded
  uint64_t moved = 0;                ///< read and written
  double bound_seconds = 0;          ///< the roofline: the slower of memory and arithmetic
  double error = 0;                  ///< of the largest output, against the reference; 0: equal byte for byte
};

struct Measured {
  std::string device;
  std::string architecture;  ///< "sm_90"
  double sm_mhz = 0;         ///< under load
  double memory_mhz = 0;     ///< 0: the driver does not say
  std::vector<MeasuredArm> arms;
};

/// What stands around an attention arm.
enum class BatchKind : uint8_t {
  kEven = 0,
  kShuffled = 1,  ///< page tables in random order
  kRagged = 2,    ///< lengths 1 : 64 with the same total
};

/// An attention arm: a format and how its pages lie.
struct AttentionArm {
  std::string format;  ///< one of AttentionFormats()
  BatchKind kind = BatchKind::kEven;
};

/// "fp16", "bf16", "int8", "int4", "int4-affine", "pnmix" (3/1 at 50 %, v=2), …
std::vector<std::string> AttentionFormats();

struct AttentionMeasurement {
  DecodeShape shape;
  uint32_t batch = 8;
  uint32_t tokens = 32768;  ///< of each sequence
  std::vector<AttentionArm> arms;
  int rounds = 7;
  // The planner's costs, to be tried out; negative: the kernel's own.
  int overhead = -1;
  int start = -1;  ///< of every format
  int fine_below = -1;
  int least_bytes = -1;
};
/// Errors  kPrecisionUnsupported: a format there is not; kModelUnsupported; kNotFound: no GPU; kInternal: the driver's
///         message, or an arm that is not within 3e-3 of the reference
Result<Measured> MeasureAttention(const AttentionMeasurement& wanted);

/// Rows of codec::EncodeRowsRef encoded and decoded, tiles stored, pages packed, pair norms and attention mass taken;
/// the first arm is a device copy of as many bytes.
struct CodecMeasurement {
  uint32_t head_dim = 128;
  uint32_t num_kv_heads = 8;
  uint32_t pages = 1024;  ///< of 128 tokens
  int rounds = 9;
};
Result<Measured> MeasureCodec(const CodecMeasurement& wanted);
Result<Measured> MeasurePack(const CodecMeasurement& wanted);

}  // namespace kvant::kernels::cuda
