#include "cli/bench/pack_work.h"

#include <algorithm>
#include <cstring>

#include "cli/bench/pair_rows.h"
#include "kvant/base/checked.h"

namespace kvant::cli {
namespace {

constexpr size_t kPieceBlocks = 4;  // a thread takes at once
constexpr uint32_t kDifferentBlocks = 8;

}  // namespace

Result<PackWork> PackWork::Make(std::span<const codec::PairPrecision> precisions, uint32_t head_dim,
                                uint64_t payload_bytes, kernels::Isa isa, ThreadPool* pool) {
  PackWork work;
  work.head_dim_ = head_dim;
  work.isa_ = isa;
  work.pool_ = pool;
  const size_t block_bytes = work.block_halves() * sizeof(Half);
  const uint64_t bytes = RoundUp(payload_bytes, block_bytes * kPieceBlocks);
  KVANT_ASSIGN_OR_RETURN(work.source_, Buffer::Allocate(bytes));
  KVANT_ASSIGN_OR_RETURN(work.target_, Buffer::Allocate(bytes));
  std::vector<PairRows> rows;
  for (uint32_t i = 0; i < kDifferentBlocks; ++i) {
    rows.push_back(RandomPairRows(head_dim, kBlockTokens, i));
  }
  auto* at = reinterpret_cast<Half*>(work.source_.bytes().data());
  for (size_t block = 0; block < work.num_blocks(); ++block) {
    at = std::ranges::copy(rows[block % kDifferentBlocks].keys, at).out;
    at = std::ranges::copy(rows[block % kDifferentBlocks].values, at).out;
  }
  work.Copy();  // touches every page of both buffers
  for (const codec::PairPrecision& precision : precisions) {
    KVANT_RETURN_IF_ERROR(work.Add(precision));
  }
  return work;
}

Status PackWork::Add(const codec::PairPrecision& precision) {
  const codec::PairFormat format = precision.FormatOf(head_dim_);
  KVANT_ASSIGN_OR_RETURN(codec::WidthMap map, RandomWidthMap(precision, head_dim_, 1));
  Packed packed{std::make_unique<kernels::PairPlan>(format, std::move(map)), {}};
  const size_t page_bytes = packed.plan->layout().total_bytes;
  KVANT_ASSIGN_OR_RETURN(packed.pages,
                         Buffer::Allocate(num_blocks() * (kBlockTokens / format.page_tokens) * page_bytes));
  packed_.push_back(std::move(packed));
  Pack(packed_.size() - 1);
  const auto* keys = reinterpret_cast<const Half*>(source_.bytes().data());
  std::vector<std::byte> expected(page_bytes);
  const kernels::PairPlan& plan = *packed_.back().plan;
  codec::SerializePairPage(
      format, plan.map(),
      codec::EncodePairPageRef(format, plan.map(), keys, keys + size_t{kBlockTokens} * head_dim_, head_dim_), expected);
  return std::ranges::equal(packed_.back().pages.bytes().first(page_bytes), expected)
             ? OkStatus()
             : Status(StatusCode::kInternal, codec::PairPrecisionWord(precision) + ": the page is not the reference's");
}

// One long copy a thread: only then does the C library stream past the caches, which is its fastest way.
void PackWork::Copy() {
  const auto num_threads = static_cast<size_t>(pool_->num_threads());
  pool_->ParallelFor(num_threads, [&](size_t index, int) {
    const size_t begin = source_.size() * index / num_threads;
    const size_t end = source_.size() * (index + 1) / num_threads;
    std::memcpy(target_.bytes().data() + begin, source_.bytes().data() + begin, end - begin);
  });
}

void PackWork::PackBlock(Packed& packed, size_t block) {
  const uint32_t page_tokens = packed.plan->format().page_tokens;
  const size_t page_bytes = packed.plan->layout().total_bytes;
  const auto* keys = reinterpret_cast<const Half*>(source_.bytes().data()) + block * block_halves();
  const Half* values = keys + size_t{kBlockTokens} * head_dim_;
  const uint32_t pages = kBlockTokens / page_tokens;
  for (uint32_t i = 0; i < pages; ++i) {
    const size_t row = size_t{i} * page_tokens * head_dim_;
    kernels::PackPairPage(isa_, *packed.plan, keys + row, values + row, head_dim_,
                          packed.pages.bytes().subspan((block * pages + i) * page_bytes, page_bytes));
  }
}

void PackWork::Pack(size_t index) {
  pool_->ParallelFor(num_blocks() / kPieceBlocks, [&](size_t piece, int) {
    for (size_t i = 0; i < kPieceBlocks; ++i) {
      PackBlock(packed_[index], piece * kPieceBlocks + i);
    }
  });
}

}  // namespace kvant::cli
