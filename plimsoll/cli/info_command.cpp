#include <fmt/format.h>

#include "plimsoll/app/info.h"
#include "plimsoll/cli/commands.h"

namespace plimsoll::cli {
namespace {

int run(const nlohmann::json&) {
  const app::MachineInfo info = app::machine_info();
  fmt::print("CPU        {}\n", info.cpu);
  fmt::print("ISA        {} (of {})\n", runtime::name(info.in_force), runtime::name(info.detected));
  for (const app::KernelIsa& kernel : info.kernels)
    fmt::print("  {:<12} {}\n", kernel.kernel, runtime::name(kernel.isa));
  fmt::print("threads    {}\n", info.threads);
  fmt::print("versions   plimsoll {}, torch {}, {}\n", info.plimsoll_version, info.torch_version, info.compiler);
  fmt::print("limits     a core: FP32 multiply-add {:.0f} GFLOP/s", info.limits.fp32_gflops);
  if (info.limits.bf16_gflops) fmt::print(", VDPBF16PS {:.0f} GFLOP/s", *info.limits.bf16_gflops);
  fmt::print("; all: memory read {:.1f} GB/s\n", info.limits.read_gbytes_per_s);
  return kExitOk;
}

}  // namespace

Command info_command() {
  return {.name = "info",
          .summary = "The processor, the instructions chosen for each kernel, threads, versions and measured limits",
          .options = {},
          .run = run};
}

}  // namespace plimsoll::cli
