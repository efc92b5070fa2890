#include <fmt/format.h>

#include <memory>

#include "plimsoll/app/info.h"
#include "plimsoll/app/process/limits.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/table.h"

namespace plimsoll::cli {
namespace {

void print_limits(const app::MachineLimits& limits) {
  fmt::print("limits     a core: FP32 multiply-add {:.0f} GFLOP/s", limits.fp32_gflops);
  if (limits.bf16_gflops) fmt::print(", VDPBF16PS {:.0f} GFLOP/s", *limits.bf16_gflops);
  if (limits.tile_gflops) fmt::print(", TDPBF16PS {:.0f} GFLOP/s", *limits.tile_gflops);
  fmt::print("; all: memory read {:.1f} GB/s\n", limits.read_gbytes_per_s);
}

void add_row(Table& table, const std::string& name, const char* unit, const app::Rate& rate) {
  table.add({name, unit, fmt::format("{:.1f}", rate.one_thread), fmt::format("{:.1f}", rate.all_threads)});
}

void add_rows(Table& table, const std::string& level, const app::MemoryRates& rates) {
  add_row(table, level + " read", "GB/s", rates.read);
  add_row(table, level + " copy", "GB/s", rates.copy);
  add_row(table, level + " in place", "GB/s", rates.in_place);
}

void print_all_limits(int threads) {
  const app::AllLimits limits = app::measure_all_limits();
  Table table({"limits", "", "1 thread", fmt::format("{} threads", threads)});
  add_row(table, "FP32 multiply-add", "GFLOP/s", limits.fp32_gflops);
  if (limits.bf16_gflops) add_row(table, "VDPBF16PS", "GFLOP/s", *limits.bf16_gflops);
  if (limits.tile_gflops) add_row(table, "TDPBF16PS", "GFLOP/s", *limits.tile_gflops);
  add_rows(table, "L2", limits.l2);
  add_rows(table, "L3", limits.l3);
  add_rows(table, "memory", limits.memory);
  add_row(table, "first touch, small pages", "GB/s", limits.first_touch);
  add_row(table, "first touch, huge pages", "GB/s", limits.first_touch_huge);
  table.add({"fork and join", "us", "", fmt::format("{:.2f}", limits.fork_join_us)});
  fmt::print("{}", table.text());
}

int run(bool all_limits) {
  const app::MachineInfo info = app::machine_info();
  fmt::print("CPU        {}\n", info.cpu);
  fmt::print("ISA        {} (of {})\n", runtime::name(info.in_force), runtime::name(info.detected));
  if (!info.amx_refusal.empty()) fmt::print("  amx is not used: {}\n", info.amx_refusal);
  for (const app::KernelIsa& kernel : info.kernels)
    fmt::print("  {:<12} {}\n", kernel.kernel, runtime::name(kernel.isa));
  fmt::print("threads    {}\n", info.threads);
  fmt::print("versions   plimsoll {}, torch {}, {}\n", info.plimsoll_version, info.torch_version, info.compiler);
  fmt::print("CUDA       {}\n", info.cuda);
  if (all_limits) {
    print_all_limits(info.threads);
  } else {
    print_limits(app::measure_limits());
  }
  return kExitOk;
}

}  // namespace

Command info_command() {
  const auto all_limits = std::make_shared<bool>(false);
  return {.name = "info",
          .summary = "The processor, the instructions chosen for each kernel, threads, versions and measured limits",
          .options = {{"limits", "", toggle(*all_limits), "every limit, on one and on all threads (some seconds)"}},
          .run = [all_limits](const nlohmann::json&) { return run(*all_limits); }};
}

}  // namespace plimsoll::cli
