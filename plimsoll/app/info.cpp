#include "plimsoll/app/info.h"

#include <torch/version.h>

#include <algorithm>

#include "plimsoll/kernels/cuda/device_kernels.h"
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

std::string cuda_text() {
  namespace cuda = kernels::cuda;
  if (!cuda::has_device_code()) return "no kernels in this program (PLIMSOLL_CUDA=ON puts them in)";
  if (cuda::verified_on().empty()) return "kernels that have not run on a card as they are";
  return "kernels verified on " + std::string(cuda::verified_on()) + ", sources unchanged since";
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
          .compiler = "GCC " __VERSION__,
          .cuda = cuda_text()};
}

}  // namespace plimsoll::app
