#include <algorithm>

#include "plimsoll/kernels/activation/activation_loops.h"
#include "plimsoll/kernels/row_blocks.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements below which another thread costs more than it gives

const ActivationLoops& loops_in_force() {
  return runtime::pick(kActivationLoopsPortable, kActivationLoopsAvx2, kActivationLoopsAvx512);
}

void backward_with_column_sum(const ActivationBackward& args) {
  const ActivationLoops& loops = loops_in_force();
  const int64_t blocks = row_blocks(args.rows), width = is_gated(args.activation.kind) ? 2 * args.cols : args.cols;
  float* partials = static_cast<float*>(
      runtime::scratch(runtime::ScratchSlot::kReduce, static_cast<size_t>(blocks * width) * sizeof(float)));
  SharedAmax amax;
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(kRowBlock * args.cols, 1), 1);
  runtime::parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* partial = partials + block * width;
      std::fill_n(partial, width, 0.0f);
      const int64_t first = block * kRowBlock, last = std::min(first + kRowBlock, args.rows);
      amax.raise(loops.backward(args, first * args.cols, last * args.cols, partial));
    }
  });
  sum_blocks(partials, blocks, width, width, args.column_sum);
  amax.store(args.amax);
}

}  // namespace

void activation_forward(const ActivationForward& args) {
  const ActivationLoops& loops = loops_in_force();
  SharedAmax amax;
  runtime::parallel_for(args.rows * args.cols, kGrain,
                        [&](int64_t begin, int64_t end) { amax.raise(loops.forward(args, begin, end)); });
  amax.store(args.amax);
}

void activation_backward(const ActivationBackward& args) {
  if (args.column_sum) return backward_with_column_sum(args);
  const ActivationLoops& loops = loops_in_force();
  SharedAmax amax;
  runtime::parallel_for(args.rows * args.cols, kGrain,
                        [&](int64_t begin, int64_t end) { amax.raise(loops.backward(args, begin, end, nullptr)); });
  amax.store(args.amax);
}

}  // namespace plimsoll::kernels
