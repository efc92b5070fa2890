// Many products of one shape: threads take whole products where that keeps all of them at work, else parts of each.
#include <algorithm>
#include <bit>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/kernels/gemm/gemm_driver.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

const void* advance(const void* base, int64_t elements, format::Format format) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + elements * format::bytes(format);
}

Gemm product_at(const BatchedGemm& args, int64_t index) {
  Gemm gemm = args.first;
  gemm.a.data = advance(gemm.a.data, index * args.a_step, gemm.a.format);
  gemm.b.data = advance(gemm.b.data, index * args.b_step, gemm.b.format);
  gemm.output = static_cast<char*>(gemm.output) + index * args.output_step * format::bytes(gemm.output_format);
  return gemm;
}

}  // namespace

void gemm_batched(const BatchedGemm& args) {
  const GemmLevel& level = chosen_level();
  const int64_t work = args.first.m * args.first.n * args.first.k;
  const int64_t grain = whole_products(args.batch, work, runtime::threads()) ? 1 : std::max<int64_t>(args.batch, 1);
  SharedAmax amax;
  runtime::parallel_for(args.batch, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) amax.raise(std::bit_cast<int32_t>(multiply(product_at(args, i), level)));
  });
  amax.store(args.first.epilogue.amax);
}

}  // namespace plimsoll::kernels
