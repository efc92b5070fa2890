#include "plimsoll/kernels/limits/limits.h"

#include <ctime>

#include "plimsoll/kernels/limits/limits_isa.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/pick.h"

namespace plimsoll::kernels {
namespace {

double clock_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Measured measure(int64_t (*loop)(int64_t), double seconds) {
  constexpr int64_t kSteps = 20000;  // some 0.1 ms
  Measured result;
  const double start = thread_cpu_seconds();
  do {
    result.operations += static_cast<double>(kSteps * loop(kSteps));
    result.seconds = thread_cpu_seconds() - start;
  } while (result.seconds < seconds);
  return result;
}

}  // namespace

double thread_cpu_seconds() { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }
double process_cpu_seconds() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }

Measured measure_fp32_limit(double seconds) {
  return measure(runtime::pick(multiply_add_portable, multiply_add_avx2, multiply_add_avx512), seconds);
}

Measured measure_bf16_limit(double seconds) {
  if (runtime::isa() < runtime::Isa::kAvx512Bf16) return {};
  return measure(dot_pairs_avx512_bf16, seconds);
}

Measured measure_tile_limit(double seconds) {
  if (runtime::isa() < runtime::Isa::kAmx) return {};
  return measure(multiply_tiles_amx, seconds);
}

}  // namespace plimsoll::kernels
