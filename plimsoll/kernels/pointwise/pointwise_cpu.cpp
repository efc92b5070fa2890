#include <algorithm>

#include "plimsoll/kernels/pointwise/pointwise_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

namespace {

constexpr int64_t kBlock = 4096;  // elements, of which the squares are summed in FP32
constexpr int64_t kGrain = 8;     // blocks: about ten microseconds

Pointwise block_of(const Pointwise& args, int64_t begin) {
  Pointwise part = args;
  part.a = static_cast<const uint16_t*>(args.a) + begin;
  if (args.b != nullptr) part.b = static_cast<const uint16_t*>(args.b) + begin;
  part.y = static_cast<uint16_t*>(args.y) + begin;
  part.count = std::min(kBlock, args.count - begin);
  return part;
}

}  // namespace

PointwiseResult pointwise(const Pointwise& args) {
  const int64_t blocks = (args.count + kBlock - 1) / kBlock;
  auto* sums =
      static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kReduce, static_cast<size_t>(blocks) * sizeof(float)));
  const PointwiseLoops& loops = runtime::pick(kPointwiseLoopsPortable, kPointwiseLoopsAvx2, kPointwiseLoopsAvx512);
  SharedAmax amax;
  runtime::parallel_for(blocks, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PointwisePart part = loops.part(block_of(args, i * kBlock));
      amax.raise(part.amax_bits);
      sums[i] = part.sum_of_squares;
    }
  });
  PointwiseResult result{.amax = amax.value()};
  for (int64_t i = 0; i < blocks; ++i) result.sum_of_squares += static_cast<double>(sums[i]);
  return result;
}

}  // namespace plimsoll::kernels
