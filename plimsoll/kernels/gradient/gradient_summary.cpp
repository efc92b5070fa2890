#include "plimsoll/kernels/gradient/gradient_blocks.h"

namespace plimsoll::kernels {
namespace {

// The tensor that holds a block, where blocks are numbered through all tensors.
int64_t tensor_of_block(const GradientPass& args, int64_t block) {
  int64_t tensor = 0;
  while (block >= gradient_blocks(args.tensors[tensor].count)) block -= gradient_blocks(args.tensors[tensor++].count);
  return tensor;
}

}  // namespace

GradientSummary gradient_summary(const GradientPass& args, const GradientGroupSum* groups) {
  GradientSummary summary;
  const int64_t count = gradient_groups(gradient_blocks(args));
  for (int64_t i = 0; i < count; ++i) {
    summary.sum_of_squares += groups[i].sum_of_squares;
    summary.non_finite += groups[i].non_finite;
    if (groups[i].first >= 0 && summary.first_non_finite < 0) {
      summary.first_non_finite = tensor_of_block(args, i * kGradientGroup + groups[i].first);
    }
  }
  return summary;
}

}  // namespace plimsoll::kernels
