#include "plimsoll/amp/shared_findings.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

namespace plimsoll::amp {
namespace {

constexpr int64_t kHeader = 4;  // number, gradients, non_finite, sum_of_squares

}  // namespace

Findings shared(const Findings& mine, int64_t number, const ops::RankGroup& ranks) {
  const auto bins = static_cast<int64_t>(mine.histogram.counts.size());
  const at::Tensor packed = at::empty({1, kHeader + bins}, at::kLong);
  auto* const words = packed.mutable_data_ptr<int64_t>();
  words[0] = number;
  words[1] = mine.gradients;
  words[2] = mine.non_finite;
  words[3] = std::bit_cast<int64_t>(mine.sum_of_squares);
  std::ranges::copy(mine.histogram.counts, words + kHeader);
  const at::Tensor all = ranks.all_gather(packed).contiguous();
  Findings sum;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t* const theirs = all.const_data_ptr<int64_t>() + rank * (kHeader + bins);
    TORCH_CHECK(theirs[0] == all.const_data_ptr<int64_t>()[0],
                "ShardedGradScaler: expected unscale_() and step() as often on each rank, got call ", number,
                " here and ", theirs[0], " on rank ", rank);
    sum.gradients += theirs[1];
    sum.non_finite += theirs[2];
    sum.sum_of_squares += std::bit_cast<double>(theirs[3]);
    if (theirs[2] > 0 && sum.first_with < 0) sum.first_with = rank;
    GradientHistogram histogram;
    std::copy_n(theirs + kHeader, bins, histogram.counts.begin());
    sum.histogram += histogram;
  }
  return sum;
}

}  // namespace plimsoll::amp
