#include <algorithm>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

void amax(const Amax& args) {
  const QuantizeLoops& kernels = quantize_loops();
  constexpr int64_t kGrain = 32768;  // elements: about ten microseconds
  SharedAmax result;
  const auto raise_to_region = [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
    if (cols == 0) return;
    int32_t amax_bits = 0;
    const auto* x = static_cast<const char*>(args.x) + (row * args.x_stride + col) * format::bytes(args.x_format);
    kernels.amax({x, args.x_format, rows, cols, args.x_stride, std::max<int64_t>(cols, 2), &amax_bits});
    result.raise(amax_bits);
  };
  if (args.rows == 1 || args.x_stride == args.cols) {
    runtime::parallel_for(args.rows * args.cols, kGrain,
                          [&](int64_t begin, int64_t end) { raise_to_region(0, begin, 1, end - begin); });
  } else {
    const int64_t grain = kGrain / std::max<int64_t>(args.cols, 1) + 1;
    runtime::parallel_for(args.rows, grain,
                          [&](int64_t begin, int64_t end) { raise_to_region(begin, 0, end - begin, args.cols); });
  }
  result.store(args.amax);
}

}  // namespace plimsoll::kernels
