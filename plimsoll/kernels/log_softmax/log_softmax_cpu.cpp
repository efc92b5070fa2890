#include <algorithm>

#include "plimsoll/kernels/log_softmax/log_softmax_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements below which another thread costs more than it gives

const LogSoftmaxLoops& loops_in_force() {
  return runtime::pick(kLogSoftmaxLoopsPortable, kLogSoftmaxLoopsAvx2, kLogSoftmaxLoopsAvx512);
}

int64_t grain_of(int64_t cols) { return std::max<int64_t>(kGrain / cols, 1); }

}  // namespace

void log_softmax_forward(const LogSoftmaxForward& args) {
  if (args.cols == 0) return;
  const LogSoftmaxLoops& loops = loops_in_force();
  runtime::parallel_for(args.rows, grain_of(args.cols),
                        [&](int64_t begin, int64_t end) { loops.forward(args, begin, end); });
}

void log_softmax_backward(const LogSoftmaxBackward& args) {
  if (args.cols == 0) return;
  const LogSoftmaxLoops& loops = loops_in_force();
  runtime::parallel_for(args.rows, grain_of(args.cols),
                        [&](int64_t begin, int64_t end) { loops.backward(args, begin, end); });
}

}  // namespace plimsoll::kernels
