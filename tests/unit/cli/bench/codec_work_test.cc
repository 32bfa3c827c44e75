#include "cli/bench/codec_work.h"

#include <gtest/gtest.h>

#include <string>

namespace kvant::cli {
namespace {

constexpr uint32_t kHeadDim = 40;
constexpr uint64_t kBytes = 300'000;

Status Make(const kernels::RowKernels& kernels, codec::TokenCodec codec) {
  ThreadPool pool(2);
  return CodecWork::Make({&codec, 1}, kHeadDim, kBytes, kernels, &pool).status();
}

TEST(CodecWork, EveryCodecOfEveryInstructionSetPassesTheCheck) {
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    for (uint8_t codec = 0; codec < codec::kNumTokenCodecs; ++codec) {
      ThreadPool pool(2);
      const auto of = static_cast<codec::TokenCodec>(codec);
      auto work = CodecWork::Make({&of, 1}, kHeadDim, kBytes, kernels::RowKernelsOf(isa), &pool);
      ASSERT_TRUE(work.ok()) << work.status().message();
      EXPECT_GE(work->payload_bytes(), kBytes);
      work->Decode(0);
      work->Copy();
    }
  }
}

// Kernels with one fault each.
void EncodeWrong(codec::TokenCodec codec, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens,
                 codec::TokenRows out) {
  codec::EncodeRowsRef(codec, head_dim, src, src_stride, num_tokens, out);
  out.codes.back() ^= 1;
}

void ScaleWrong(codec::TokenCodec codec, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens,
                codec::TokenRows out) {
  codec::EncodeRowsRef(codec, head_dim, src, src_stride, num_tokens, out);
  out.scales.front().bits ^= 1;
}

void DecodeWrong(codec::TokenCodec codec, uint32_t head_dim, codec::ConstTokenRows rows, size_t num_tokens, Half* dst,
                 size_t dst_stride) {
  codec::DecodeRowsRef(codec, head_dim, rows, num_tokens, dst, dst_stride);
  dst[(num_tokens - 1) * dst_stride].bits ^= 1;
}

TEST(CodecWork, AKernelThatIsNotTheReferencesEqualIsNotTimed) {
  const auto expect_fault = [](const kernels::RowKernels& kernels, const std::string& message) {
    const Status status = Make(kernels, codec::TokenCodec::kInt8);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(status.message(), message);
  };
  kernels::RowKernels kernels = kernels::RowKernelsOf(kernels::Isa::kScalar);
  kernels.encode = EncodeWrong;
  expect_fault(kernels, "int8: the encoded rows are not the reference's");
  kernels.encode = ScaleWrong;
  expect_fault(kernels, "int8: the encoded rows are not the reference's");
  kernels = kernels::RowKernelsOf(kernels::Isa::kScalar);
  kernels.decode = DecodeWrong;
  expect_fault(kernels, "int8: the decoded rows are not the reference's");
}

}  // namespace
}  // namespace kvant::cli
