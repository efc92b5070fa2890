#include "plimsoll/kernels/sgd/sgd_body.inc"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

int32_t sgd_part_portable(const Sgd& part) { return sgd_any(part); }

namespace {

auto part_function() {
  const runtime::Isa isa = runtime::isa();
  if (isa >= runtime::Isa::kAvx512) return sgd_part_avx512;
  if (isa >= runtime::Isa::kAvx2) return sgd_part_avx2;
  return sgd_part_portable;
}

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
  const auto run = part_function();
  SharedAmax amax;
  runtime::parallel_for(args.count, kGrain,
                        [&](int64_t begin, int64_t end) { amax.raise(run(part_of(args, begin, end))); });
  return amax.value();
}

}  // namespace plimsoll::kernels
