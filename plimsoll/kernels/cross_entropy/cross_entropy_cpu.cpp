#include <algorithm>

#include "plimsoll/kernels/cross_entropy/cross_entropy_loops.h"
#include "plimsoll/kernels/simd/row_exponentials.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements below which another thread costs more than it gives

float* row_buffer(int64_t vocabulary) {
  const int64_t floats = vocabulary + 15 + logit_chunks(vocabulary);
  return static_cast<float*>(
      runtime::scratch(runtime::ScratchSlot::kRows, static_cast<size_t>(floats) * sizeof(float)));
}

}  // namespace

void cross_entropy(const CrossEntropy& args) {
  const CrossEntropyLoops& loops =
      runtime::pick(kCrossEntropyLoopsPortable, kCrossEntropyLoopsAvx2, kCrossEntropyLoopsAvx512);
  runtime::parallel_for(args.rows, std::max<int64_t>(kGrain / args.vocabulary, 1),
                        [&](int64_t begin, int64_t end) { loops.rows(args, begin, end, row_buffer(args.vocabulary)); });
}

}  // namespace plimsoll::kernels
