// Findings of all ranks, where each has a part of the gradients.
#pragma once

#include <cstdint>

#include "plimsoll/amp/gradient_histogram.h"
#include "plimsoll/ops/ranks/rank_group.h"

namespace plimsoll::amp {

struct Findings {
  int64_t gradients = 0;        // tensors
  int64_t non_finite = 0;       // elements
  double sum_of_squares = 0;    // without the loss scale
  GradientHistogram histogram;  // with it
  int64_t first_with = -1;      // the first rank that found what is not finite; -1: none
};

// A collective, one all_gather: the sums, with the same bits on each rank. number: of this call, which all ranks count
// alike; ranks that are at another one are an error on all of them.
Findings shared(const Findings& mine, int64_t number, const ops::RankGroup& ranks);

}  // namespace plimsoll::amp
