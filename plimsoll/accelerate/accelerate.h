// Plain PyTorch programs with our kernels on the CPU: docs/accelerate.md.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace plimsoll {

// Operators of torch run our kernels where those are faster, in the whole process; other calls go where they went. A second
// call changes nothing. No other thread may run an operator of torch during a call of these two.
void accelerate();
// torch's own kernels again.
void stop_acceleration();
bool is_accelerated();

// Accelerates until it is destroyed; leaves acceleration on that was on before.
class Accelerated {
 public:
  Accelerated();
  ~Accelerated();
  Accelerated(const Accelerated&) = delete;
  Accelerated& operator=(const Accelerated&) = delete;

 private:
  bool was_on_;
};

// Calls of an operator since it was first accelerated: those that were replaced, and, for each reason, those that fell through.
struct OperatorCalls {
  struct Outcome {
    std::string_view name;  // "replaced", "dtype", "shape", "strides", "size", "processor"
    int64_t calls = 0;
  };
  std::string_view op;
  std::array<Outcome, 6> outcomes;
};
// Operators that were called.
std::vector<OperatorCalls> acceleration_report();
void reset_acceleration_report();

}  // namespace plimsoll
