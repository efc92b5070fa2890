#include <algorithm>

#include "plimsoll/kernels/rotary/rotary_rows.inc"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements below which another thread costs more than it gives

using Tokens = void (*)(const Rotary&, int64_t, int64_t);

Tokens tokens_of(runtime::Isa isa) {
  if (isa >= runtime::Isa::kAvx512) return rotary_tokens_avx512;
  if (isa >= runtime::Isa::kAvx2) return rotary_tokens_avx2;
  return rotary_tokens;
}

}  // namespace

void rotary(const Rotary& args) {
  const Tokens tokens = tokens_of(runtime::isa());
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(args.heads * args.channels, 1), 1);
  runtime::parallel_for(args.tokens, grain, [&](int64_t begin, int64_t end) { tokens(args, begin, end); });
}

}  // namespace plimsoll::kernels
