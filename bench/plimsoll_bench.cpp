// All kernels' benchmarks: one line each, with the rate, the limit measured in turn with it, and the share.
//   plimsoll_bench [--threads N] [--benchmark_filter=gemm/fp32] [--benchmark_out=bench.json] [--benchmark_min_time=0.1]
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace {

using namespace plimsoll;

class Table : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override {
    std::printf("%s, %s, threads: %d\n%-58s %10s %10s %-8s %6s\n", runtime::cpu_name().c_str(),
                std::string(runtime::name(runtime::isa())).c_str(), runtime::threads(), "kernel", "rate", "limit",
                "unit", "share");
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) print(run);
    std::fflush(stdout);
  }

 private:
  static void print(const Run& run) {
    const auto counter = [&](const char* name) { return static_cast<double>(run.counters.at(name)); };
    const std::string name = run.run_name.function_name + "/" + run.run_name.args;
    const char* unit = run.counters.contains("GB/s") ? "GB/s" : "GFLOP/s";
    std::printf("%-58s %10.1f %10.1f %-8s %5.0f%%\n", name.c_str(), counter(unit), counter("limit"), unit,
                counter("share_%"));
  }
};

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  CLI::App command("All kernels' benchmarks. Further options: see Google Benchmark's --benchmark_*.");
  int threads = 1;
  command.add_option("--threads", threads, "of the kernels and their limits")->check(CLI::PositiveNumber);
  CLI11_PARSE(command, argc, argv);
  runtime::set_threads(threads);
  benchmark::AddCustomContext("cpu", runtime::cpu_name());
  benchmark::AddCustomContext("isa", std::string(runtime::name(runtime::isa())));
  benchmark::AddCustomContext("matmul_isa", std::string(runtime::name(runtime::matmul_isa())));
  benchmark::AddCustomContext("threads", std::to_string(runtime::threads()));
  Table table;
  benchmark::RunSpecifiedBenchmarks(&table);
  benchmark::Shutdown();
  return 0;
}
