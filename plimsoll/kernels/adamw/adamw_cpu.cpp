#include <algorithm>
#include <cmath>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/adamw/adamw_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

namespace {

AdamWCoefficients coefficients(const AdamW& args) {
  const double step = static_cast<double>(args.step);
  return {
      .decay = static_cast<float>(1 - args.lr * args.weight_decay),
      .beta1 = static_cast<float>(args.beta1),
      .one_minus_beta1 = static_cast<float>(1 - args.beta1),
      .beta2 = static_cast<float>(args.beta2),
      .one_minus_beta2 = static_cast<float>(1 - args.beta2),
      .step_size = static_cast<float>(args.lr / (1 - std::pow(args.beta1, step))),
      .inv_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(args.beta2, step))),
      .eps = static_cast<float>(args.eps),
      .grad_scale = args.grad_scale,
      .l2 = static_cast<float>(args.l2),
      .keys = {},
  };
}

}  // namespace

float adamw(const AdamW& args) {
  if (args.count == 0) return 0;
  constexpr int64_t kGroupsOfKeys = (int64_t{1} << 32) / kAdamWGroup;
  const AdamWCoefficients shared = coefficients(args);
  const runtime::RoundingWords words{.seed = args.seed, .step = static_cast<uint64_t>(args.step)};
  const AdamWLoops& loops = runtime::pick(kAdamWLoopsPortable, kAdamWLoopsAvx2, kAdamWLoopsAvx512);
  SharedAmax amax;
  const int64_t first = args.first / kAdamWGroup, last = (args.first + args.count + kAdamWGroup - 1) / kAdamWGroup;
  runtime::parallel_for(last - first, 16, [&](int64_t begin, int64_t end) {
    AdamWCoefficients c = shared;
    for (int64_t group = first + begin; group < first + end;) {
      const int64_t upper = group / kGroupsOfKeys, stop = std::min(first + end, (upper + 1) * kGroupsOfKeys);
      c.keys = words.keys(static_cast<uint64_t>(upper));
      amax.raise(loops.groups(args, c, group, stop));
      group = stop;
    }
  });
  return amax.value();
}

}  // namespace plimsoll::kernels
