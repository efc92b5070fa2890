// Peak rates of one core, measured here and now: arithmetic on registers alone. Kernels' benchmarks report their share
// of it. Rates are per second of the calling thread's CPU time, so that neighbours on a shared machine disturb little.
#pragma once

namespace plimsoll::kernels {

// CPU time of the calling thread, and of all threads of the process, in seconds.
double thread_cpu_seconds();
double process_cpu_seconds();

// Operations done in a CPU time; sums of both make a mean over several measurements.
struct Measured {
  double operations = 0, seconds = 0;
  double rate() const { return operations / seconds; }
  Measured& operator+=(const Measured& other) {
    operations += other.operations;
    seconds += other.seconds;
    return *this;
  }
};

// FP32 multiply-adds (two operations each) on the widest registers at or below runtime::isa(), for about `seconds`.
Measured measure_fp32_limit(double seconds);

// VDPBF16PS (64 operations each on 16 lanes); no operations where runtime::isa() has none.
Measured measure_bf16_limit(double seconds);

// TDPBF16PS (16,384 operations each on full tiles); no operations where runtime::isa() has none.
Measured measure_tile_limit(double seconds);

}  // namespace plimsoll::kernels
