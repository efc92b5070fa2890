#include "plimsoll/app/info.h"

#include <torch/version.h>

#include <algorithm>

#include "plimsoll/runtime/threads.h"

namespace plimsoll::app {
namespace {

using runtime::Isa;

// Each kernel runs the best file of its folder at or below the level in force.
std::vector<KernelIsa> kernel_isas() {
  const auto best_file = [](Isa best) { return std::min(runtime::isa(), best); };
  return {
      {"gemm", runtime::matmul_isa()},         {"attention", runtime::vector_matmul_isa()},
      {"quantize", best_file(Isa::kAvx512)},   {"dequantize", best_file(Isa::kAvx512)},
      {"transpose", best_file(Isa::kAvx2)},    {"norm", best_file(Isa::kAvx512)},
      {"activation", best_file(Isa::kAvx512)}, {"softmax", best_file(Isa::kAvx512)},
      {"adamw", best_file(Isa::kAvx512)},      {"gradient", best_file(Isa::kAvx512)},
  };
}

}  // namespace

MachineInfo machine_info() {
  return {.cpu = runtime::cpu_name(),
          .detected = runtime::detected_isa(),
          .in_force = runtime::isa(),
          .amx_refusal = runtime::amx_refusal(),
          .kernels = kernel_isas(),
          .threads = runtime::threads(),
          .plimsoll_version = PLIMSOLL_VERSION,
          .torch_version = TORCH_VERSION,
          .compiler = "GCC " __VERSION__};
}

}  // namespace plimsoll::app
