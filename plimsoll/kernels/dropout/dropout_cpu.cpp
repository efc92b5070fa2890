#include <algorithm>

#include "plimsoll/kernels/dropout/dropout_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

void dropout(const Dropout& args) {
  constexpr int64_t kBlock = 4096;  // elements; a divisor of 2^32
  constexpr int64_t kGrain = 8;     // blocks: about ten microseconds
  const DropoutLoops& loops = runtime::pick(kDropoutLoopsPortable, kDropoutLoopsAvx2, kDropoutLoopsAvx512);
  const auto threshold = static_cast<uint32_t>(std::min(args.probability * 0x1p32, 0x1p32 - 1));
  runtime::parallel_for((args.count + kBlock - 1) / kBlock, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kBlock; i < std::min(end * kBlock, args.count); i += kBlock) {
      loops.part({.args = args, .begin = i, .count = std::min(kBlock, args.count - i), .threshold = threshold});
    }
  });
}

}  // namespace plimsoll::kernels
