#include <cmath>

#include "plimsoll/kernels/adam16/adam16_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

// With maximize g is -(grad - l2 w): its sign is that of 1 - beta1 and of l2, and v does not see it.
Adam16Coefficients coefficients(const Adam16& args) {
  const double sign = args.maximize ? -1 : 1;
  return {
      .decay = static_cast<float>(1 - args.lr * args.weight_decay),
      .l2 = static_cast<float>(sign * args.l2),
      .beta1 = static_cast<float>(args.beta1),
      .one_minus_beta1 = static_cast<float>(sign * (1 - args.beta1)),
      .beta2 = static_cast<float>(args.beta2),
      .one_minus_beta2 = static_cast<float>(1 - args.beta2),
      .step_size = static_cast<float>(args.lr / (1 - std::pow(args.beta1, args.step))),
      .inv_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(args.beta2, args.step))),
      .eps = static_cast<float>(args.eps),
  };
}

Adam16 part_of(const Adam16& args, int64_t begin, int64_t end) {
  const int64_t byte = begin * format::bytes(args.format);
  Adam16 part = args;
  part.weight = static_cast<char*>(args.weight) + byte;
  part.grad = static_cast<const char*>(args.grad) + byte;
  part.moment1 = static_cast<char*>(args.moment1) + byte;
  part.moment2 = static_cast<char*>(args.moment2) + byte;
  part.count = end - begin;
  return part;
}

}  // namespace

void adam16(const Adam16& args) {
  constexpr int64_t kGrain = 16384;  // elements: about ten microseconds
  const Adam16Coefficients c = coefficients(args);
  const Adam16Loops& loops = runtime::pick(kAdam16LoopsPortable, kAdam16LoopsAvx2, kAdam16LoopsAvx512);
  runtime::parallel_for(args.count, kGrain,
                        [&](int64_t begin, int64_t end) { loops.part(part_of(args, begin, end), c); });
}

}  // namespace plimsoll::kernels
