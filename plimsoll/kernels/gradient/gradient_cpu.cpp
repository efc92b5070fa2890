#include <algorithm>

#include "plimsoll/kernels/gradient/gradient_blocks.h"
#include "plimsoll/kernels/gradient/gradient_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

namespace {

// Blocks are numbered through all tensors; this walks them in order.
class BlockCursor {
 public:
  BlockCursor(const GradientPass& pass, int64_t block) : pass_(pass), block_(block) { settle(); }

  GradientBlock block() const {
    const GradientTensor& tensor = pass_.tensors[tensor_];
    const int64_t first = block_ * kGradientBlock;
    return {.data = static_cast<char*>(tensor.data) + first * format::bytes(tensor.format),
            .format = tensor.format,
            .count = std::min(kGradientBlock, tensor.count - first),
            .scale = pass_.scale,
            .write = pass_.write};
  }
  void next() {
    ++block_;
    settle();
  }

 private:
  void settle() {
    while (tensor_ < pass_.tensor_count && block_ >= gradient_blocks(pass_.tensors[tensor_].count)) {
      block_ -= gradient_blocks(pass_.tensors[tensor_++].count);
    }
  }

  const GradientPass& pass_;
  size_t tensor_ = 0;
  int64_t block_;  // within the tensor
};

GradientGroupSum sum_of_group(const GradientBlockSum* blocks, int64_t count) {
  GradientGroupSum group;
  for (int64_t b = 0; b < count; ++b) {
    group.sum_of_squares += blocks[b].sum_of_squares;
    group.non_finite += static_cast<int32_t>(blocks[b].non_finite);
    if (blocks[b].non_finite > 0 && group.first < 0) group.first = static_cast<int32_t>(b);
  }
  return group;
}

}  // namespace

GradientSummary gradient_pass(const GradientPass& args) {
  const int64_t blocks = gradient_blocks(args), groups = gradient_groups(blocks);
  auto* const sums = static_cast<GradientBlockSum*>(runtime::scratch(
      runtime::ScratchSlot::kReduce,
      static_cast<size_t>(blocks) * sizeof(GradientBlockSum) + static_cast<size_t>(groups) * sizeof(GradientGroupSum)));
  auto* const group_sums = reinterpret_cast<GradientGroupSum*>(sums + blocks);
  const GradientLoops& loops = runtime::pick(kGradientLoopsPortable, kGradientLoopsAvx2, kGradientLoopsAvx512);
  runtime::parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
    BlockCursor cursor(args, begin);
    for (int64_t b = begin; b < end; ++b, cursor.next()) sums[b] = loops.block(cursor.block());
  });
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * kGradientGroup;
    group_sums[group] = sum_of_group(sums + begin, std::min(kGradientGroup, blocks - begin));
  }
  return gradient_summary(args, group_sums);
}

}  // namespace plimsoll::kernels
