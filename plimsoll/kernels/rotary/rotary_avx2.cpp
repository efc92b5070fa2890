#include "plimsoll/kernels/rotary/rotary_rows.inc"

namespace plimsoll::kernels {

void rotary_tokens_avx2(const Rotary& args, int64_t begin, int64_t end) { rotary_tokens(args, begin, end); }

}  // namespace plimsoll::kernels
