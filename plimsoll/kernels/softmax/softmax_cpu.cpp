#include <algorithm>

#include "plimsoll/kernels/simd/row.h"
#include "plimsoll/kernels/softmax/softmax_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements below which another thread costs more than it gives

const SoftmaxLoops& loops_in_force() {
  return runtime::pick(kSoftmaxLoopsPortable, kSoftmaxLoopsAvx2, kSoftmaxLoopsAvx512);
}

float* row_buffer(int64_t count) {
  return static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kRows, static_cast<size_t>(count) * sizeof(float)));
}

template <class Body>
void for_rows(const SoftmaxShape& shape, Body body) {
  if (shape.keys == 0) return;
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  runtime::parallel_for(rows, std::max<int64_t>(kGrain / shape.keys, 1), body);
}

}  // namespace

void softmax_forward(const SoftmaxForward& args) {
  const SoftmaxLoops& loops = loops_in_force();
  for_rows(args.shape, [&](int64_t begin, int64_t end) {
    loops.forward(args, begin, end, row_buffer(kRowsTogether * args.shape.keys));
  });
}

void softmax_backward(const SoftmaxBackward& args) {
  const SoftmaxLoops& loops = loops_in_force();
  for_rows(args.shape,
           [&](int64_t begin, int64_t end) { loops.backward(args, begin, end, row_buffer(2 * args.shape.keys)); });
}

}  // namespace plimsoll::kernels
