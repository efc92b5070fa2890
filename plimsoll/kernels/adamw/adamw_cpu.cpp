#include <algorithm>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/adamw/adamw_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

float adamw(const AdamW& args) {
  if (args.count == 0) return 0;
  constexpr int64_t kGroupsOfKeys = (int64_t{1} << 32) / kAdamWGroup;
  const AdamWCoefficients shared = adamw_coefficients(args);
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
