#include "plimsoll/kernels/sgd/sgd_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

namespace {

Sgd part_of(const Sgd& args, int64_t begin, int64_t end) {
  Sgd part = args;
  part.weight = args.weight + begin;
  part.grad = static_cast<const char*>(args.grad) + begin * format::bytes(args.grad_format);
  if (args.momentum_buffer != nullptr) part.momentum_buffer = args.momentum_buffer + begin;
  part.count = end - begin;
  return part;
}

}  // namespace

float sgd(const Sgd& args) {
  constexpr int64_t kGrain = 32768;  // elements: about ten microseconds
  const SgdLoops& loops = runtime::pick(kSgdLoopsPortable, kSgdLoopsAvx2, kSgdLoopsAvx512);
  SharedAmax amax;
  runtime::parallel_for(args.count, kGrain,
                        [&](int64_t begin, int64_t end) { amax.raise(loops.part(part_of(args, begin, end))); });
  return amax.value();
}

}  // namespace plimsoll::kernels
