#include "cli/bench/codec_work.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cli/bench/memory.h"
#include "kvant/base/checked.h"

namespace kvant::cli {
namespace {

constexpr size_t kPieceRows = 512;  // a thread takes at once
constexpr size_t kRandomHalves = size_t{1} << 20;
constexpr size_t kCheckedRows = 1000;  // ragged on purpose

codec::ConstTokenRows Const(codec::TokenRows rows) { return {rows.codes, rows.scales, rows.zeros}; }

template <typename T>
bool Same(std::span<const T> a, std::span<const T> b) {
  return std::ranges::equal(a, b);
}

}  // namespace

CodecWork::CodecWork(uint32_t head_dim, uint64_t payload_bytes, const kernels::RowKernels& kernels, ThreadPool* pool)
    : head_dim_(head_dim),
      num_rows_(RoundUp(payload_bytes / (head_dim * sizeof(Half)), kPieceRows)),
      kernels_(&kernels),
      pool_(pool) {}

Result<CodecWork> CodecWork::Make(std::span<const codec::TokenCodec> codecs, uint32_t head_dim, uint64_t payload_bytes,
                                  const kernels::RowKernels& kernels, ThreadPool* pool) {
  CodecWork work(head_dim, payload_bytes, kernels, pool);
  KVANT_ASSIGN_OR_RETURN(work.source_, Buffer::Allocate(work.payload_bytes()));
  KVANT_ASSIGN_OR_RETURN(work.target_, Buffer::Allocate(work.payload_bytes()));
  work.Fill();
  for (const codec::TokenCodec codec : codecs) {
    KVANT_RETURN_IF_ERROR(work.AddCodec(codec));
  }
  return work;
}

// The values repeat, the memory does not; copying touches every page of both buffers.
void CodecWork::Fill() {
  const std::vector<Half> values = RandomHalves(kRandomHalves, 1.0F, 1);
  const size_t total = source_.size() / sizeof(Half);
  for (size_t done = 0; done < total; done += values.size()) {
    std::copy_n(values.begin(), std::min(values.size(), total - done), SourceRow(0) + done);
  }
  Copy();
}

Result<CodecWork::Encoded> CodecWork::RoomFor(codec::TokenCodec codec, uint32_t head_dim, size_t num_rows) {
  Encoded room{codec, {}, {}, {}};
  KVANT_ASSIGN_OR_RETURN(room.codes, Buffer::Allocate(num_rows * codec::RowCodeBytes(codec, head_dim)));
  room.scales.resize(codec::HasScale(codec) ? num_rows : 0);
  room.zeros.resize(codec::HasZero(codec) ? num_rows : 0);
  return room;
}

Status CodecWork::AddCodec(codec::TokenCodec codec) {
  KVANT_ASSIGN_OR_RETURN(Encoded room, RoomFor(codec, head_dim_, num_rows_));
  encoded_.push_back(std::move(room));
  Encode(encoded_.size() - 1);
  return Check(encoded_.back());
}

Status CodecWork::Check(Encoded& encoded) {
  const auto fault = [&](const char* which) {
    return Status(StatusCode::kInternal, std::string(codec::TokenCodecName(encoded.codec)) + ": the " + which +
                                             " rows are not the reference's");
  };
  KVANT_ASSIGN_OR_RETURN(Encoded expected, RoomFor(encoded.codec, head_dim_, kCheckedRows));
  const codec::TokenRows reference = RowsOf(expected, 0, kCheckedRows);
  codec::EncodeRowsRef(encoded.codec, head_dim_, SourceRow(0), head_dim_, kCheckedRows, reference);
  const codec::TokenRows rows = RowsOf(encoded, 0, kCheckedRows);
  if (!Same<uint8_t>(rows.codes, reference.codes) || !Same<Half>(rows.scales, reference.scales) ||
      !Same<Half>(rows.zeros, reference.zeros)) {
    return fault("encoded");
  }
  std::vector<Half> decoded(kCheckedRows * head_dim_);
  std::vector<Half> decoded_reference(decoded.size());
  kernels_->decode(encoded.codec, head_dim_, Const(rows), kCheckedRows, decoded.data(), head_dim_);
  codec::DecodeRowsRef(encoded.codec, head_dim_, Const(rows), kCheckedRows, decoded_reference.data(), head_dim_);
  return Same<Half>(decoded, decoded_reference) ? OkStatus() : fault("decoded");
}

codec::TokenRows CodecWork::RowsOf(Encoded& encoded, size_t first, size_t count) const {
  const size_t code_bytes = codec::RowCodeBytes(encoded.codec, head_dim_);
  auto* codes = reinterpret_cast<uint8_t*>(encoded.codes.bytes().data());
  const auto part = [&](std::vector<Half>& all) {
    return all.empty() ? std::span<Half>() : std::span(all).subspan(first, count);
  };
  return {{codes + first * code_bytes, count * code_bytes}, part(encoded.scales), part(encoded.zeros)};
}

void CodecWork::ForEachPiece(const std::function<void(size_t, size_t)>& body) {
  pool_->ParallelFor(num_rows_ / kPieceRows, [&](size_t piece, int) { body(piece * kPieceRows, kPieceRows); });
}

// One long copy a thread: only then does the C library stream past the caches, which is its fastest way.
void CodecWork::Copy() {
  const auto num_threads = static_cast<size_t>(pool_->num_threads());
  pool_->ParallelFor(num_threads, [&](size_t index, int) {
    const size_t begin = num_rows_ * index / num_threads;
    const size_t end = num_rows_ * (index + 1) / num_threads;
    std::memcpy(TargetRow(begin), SourceRow(begin), (end - begin) * row_bytes());
  });
}

void CodecWork::Encode(size_t index) {
  Encoded& encoded = encoded_[index];
  ForEachPiece([&](size_t first, size_t count) {
    kernels_->encode(encoded.codec, head_dim_, SourceRow(first), head_dim_, count, RowsOf(encoded, first, count));
  });
}

void CodecWork::Decode(size_t index) {
  Encoded& encoded = encoded_[index];
  ForEachPiece([&](size_t first, size_t count) {
    kernels_->decode(encoded.codec, head_dim_, Const(RowsOf(encoded, first, count)), count, TargetRow(first),
                     head_dim_);
  });
}

}  // namespace kvant::cli
