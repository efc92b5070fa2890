#include <algorithm>

#include "plimsoll/kernels/rotary/rotary_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements below which another thread costs more than it gives

}  // namespace

void rotary(const Rotary& args) {
  const RotaryLoops& loops = runtime::pick(kRotaryLoopsPortable, kRotaryLoopsAvx2, kRotaryLoopsAvx512);
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(args.heads * args.channels, 1), 1);
  runtime::parallel_for(args.tokens, grain, [&](int64_t begin, int64_t end) { loops.tokens(args, begin, end); });
}

}  // namespace plimsoll::kernels
