#include <algorithm>

#include "plimsoll/kernels/norm/norm_loops.h"
#include "plimsoll/kernels/row_blocks.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/kernels/simd/row.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 16384;  // elements below which another thread costs more than it gives

const NormLoops& loops_in_force() { return runtime::pick(kNormLoopsPortable, kNormLoopsAvx2, kNormLoopsAvx512); }

int64_t grain_of(int64_t elements) { return std::max<int64_t>(kGrain / std::max<int64_t>(elements, 1), 1); }

float* floats(runtime::ScratchSlot slot, int64_t count) {
  return static_cast<float*>(runtime::scratch(slot, static_cast<size_t>(count) * sizeof(float)));
}

}  // namespace

void norm_forward(const NormForward& args) {
  const NormLoops& loops = loops_in_force();
  SharedAmax amax;
  runtime::parallel_for(args.rows, grain_of(args.cols), [&](int64_t begin, int64_t end) {
    amax.raise(loops.forward(args, begin, end, floats(runtime::ScratchSlot::kRows, (kRowsTogether + 1) * args.cols)));
  });
  amax.store(args.amax);
}

void norm_backward(const NormBackward& args) {
  const int64_t cols = args.cols, blocks = row_blocks(args.rows);
  const NormLoops& loops = loops_in_force();
  const int64_t sums = (args.dweight ? 1 : 0) + (args.dbias ? 1 : 0);
  float* partials = floats(runtime::ScratchSlot::kReduce, blocks * sums * cols);
  const int64_t dbias_offset = args.dweight ? cols : 0;
  const int64_t grain = grain_of(kRowBlock * cols);
  runtime::parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    float* buffer = floats(runtime::ScratchSlot::kRows, 3 * cols);
    for (int64_t block = begin; block < end; ++block) {
      float* partial = partials + block * sums * cols;
      loops.backward(args, block * kRowBlock, std::min((block + 1) * kRowBlock, args.rows), buffer,
                     args.dweight ? partial : nullptr, args.dbias ? partial + dbias_offset : nullptr);
    }
  });
  if (args.dweight) sum_blocks(partials, blocks, sums * cols, cols, args.dweight);
  if (args.dbias) sum_blocks(partials + dbias_offset, blocks, sums * cols, cols, args.dbias);
}

}  // namespace plimsoll::kernels
