#pragma once

#include "kernels/cpu/attend_kernels.h"
#include "kvant/kernels/attend.h"

// What the two halves of the attention driver, attend.cc and attend_pair.cc, share.
namespace kvant::kernels {

/// Which of a segment's tokens [first, first + num_tokens) the rows of a block see. Returns the largest `visible`, 0
/// where no row sees any.
uint32_t SetVisible(const AttendQueries& queries, uint32_t first_row, const AttendSegment& segment, uint32_t first,
                    uint32_t num_tokens, RowBlock& block);

/// Fetches the parameters of what a slice's token `first` begins; keys and values are left to the kernels.
Fetch BeginFetch(const AttendSlice& slice, uint32_t first);

/// Block b of `queries` as the caller has it, for keys that are not equalized.
RowSource SourceOf(const AttendQueries& queries, uint32_t block, uint32_t num_rows);

/// Tokens of a page, and what is fetched of it.
uint32_t PairTokens(const PairPlan& plan, uint32_t first, uint32_t end);
Fetch PairFetch(const AttendSegment& segment, uint32_t first);

}  // namespace kvant::kernels
