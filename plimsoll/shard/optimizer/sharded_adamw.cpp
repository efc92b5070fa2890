#include "plimsoll/shard/optimizer/sharded_adamw.h"

#include <ATen/ops/tensor.h>

#include <utility>

#include "plimsoll/shard/communicator/gather_texts.h"

namespace plimsoll::shard {
namespace {

// Sums in the order of the ranks, so that all have the same bits.
optim::GradientMeasure measured_by_all(const optim::GradientMeasure& mine, const ops::RankGroup& ranks) {
  const at::Tensor all =
      ranks.all_gather(at::tensor({mine.sum_of_squares, static_cast<double>(mine.non_finite)}, at::kDouble))
          .view({-1, 2});
  const double* const values = all.const_data_ptr<double>();
  optim::GradientMeasure sum;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    sum.sum_of_squares += values[2 * rank];
    sum.non_finite += static_cast<int64_t>(values[2 * rank + 1]);
  }
  if (sum.non_finite == 0) return sum;
  for (const std::string& name : gather_texts(ranks, mine.first_non_finite)) {
    if (sum.first_non_finite.empty()) sum.first_non_finite = name;
  }
  return sum;
}

}  // namespace

ShardedAdamW::ShardedAdamW(const std::vector<optim::NamedGroup>& groups, std::shared_ptr<const ops::RankGroup> ranks,
                           const optim::AdamWSettings& settings)
    : AdamW(groups, settings), ranks_(std::move(ranks)) {}

optim::StepReport ShardedAdamW::update(const optim::UpdateOptions& options) {
  return apply(measured_by_all(measure(options.inv_loss_scale), *ranks_), options);
}

optim::GradientRelease ShardedAdamW::release_gradients(const optim::UpdateOptions&) {
  TORCH_CHECK(false, "ShardedAdamW: expected gradients that are complete in backward to be released, got those of a ",
              "part of the parameters, which are summed over ranks after it");
}

}  // namespace plimsoll::shard
