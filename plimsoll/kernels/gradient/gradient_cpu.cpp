#include <algorithm>

#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/kernels/gradient/gradient_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

namespace {

int64_t blocks_of(const GradientTensor& tensor) { return (tensor.count + kGradientBlock - 1) / kGradientBlock; }

// Blocks are numbered through all tensors; this walks them in order.
class BlockCursor {
 public:
  BlockCursor(const GradientPass& pass, int64_t block) : pass_(pass), block_(block) { settle(); }

  size_t tensor() const { return tensor_; }
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
    while (tensor_ < pass_.tensor_count && block_ >= blocks_of(pass_.tensors[tensor_])) {
      block_ -= blocks_of(pass_.tensors[tensor_++]);
    }
  }

  const GradientPass& pass_;
  size_t tensor_ = 0;
  int64_t block_;  // within the tensor
};

}  // namespace

GradientSummary gradient_pass(const GradientPass& args) {
  int64_t blocks = 0;
  for (size_t i = 0; i < args.tensor_count; ++i) blocks += blocks_of(args.tensors[i]);
  auto* sums = static_cast<GradientBlockSum*>(
      runtime::scratch(runtime::ScratchSlot::kReduce, static_cast<size_t>(blocks) * sizeof(GradientBlockSum)));
  const GradientLoops& loops = runtime::pick(kGradientLoopsPortable, kGradientLoopsAvx2, kGradientLoopsAvx512);
  runtime::parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
    BlockCursor cursor(args, begin);
    for (int64_t b = begin; b < end; ++b, cursor.next()) sums[b] = loops.block(cursor.block());
  });

  GradientSummary summary;
  BlockCursor cursor(args, 0);
  for (int64_t b = 0; b < blocks; ++b, cursor.next()) {
    summary.sum_of_squares += sums[b].sum_of_squares;
    summary.non_finite += sums[b].non_finite;
    if (sums[b].non_finite > 0 && summary.first_non_finite < 0) {
      summary.first_non_finite = static_cast<int64_t>(cursor.tensor());
    }
  }
  return summary;
}

}  // namespace plimsoll::kernels
