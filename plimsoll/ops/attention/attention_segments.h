// Rows of several texts one after another: each segment attends to itself alone, as if it were a call of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "plimsoll/kernels/attention/attention.h"
#include "plimsoll/ops/attention/attention_pass.h"

namespace plimsoll::ops {

// Throws unless rules.segments is empty or its lengths make up all rows, of values and with no rule beside the causal
// ones.
void check_segments(const AttentionOperands& operands, const AttentionRules& rules);

// The kernel's call for each segment; of no segments, the call itself.
void attend_segments(const kernels::AttentionForward& call, const std::vector<int64_t>& segments);
void attend_segments_backward(const kernels::AttentionBackward& call, const std::vector<int64_t>& segments);

}  // namespace plimsoll::ops
