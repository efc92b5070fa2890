#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/app/checkpoint/check_codes.h"
#include "plimsoll/app/checkpoint/inspect.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/table.h"

namespace plimsoll::cli {
namespace {

struct InspectOptions {
  std::filesystem::path path;
  std::filesystem::path json;
};

std::string percent(int64_t part, int64_t whole) {
  if (whole <= 0) return "-";
  const std::string text = fmt::format("{:.2f}%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return part > 0 && text == "0.00%" ? "<0.01%" : text;
}

std::string bits(const std::optional<double>& headroom) { return headroom ? fmt::format("{:.1f}", *headroom) : "-"; }

void print(const std::vector<app::TensorReport>& reports) {
  using format::Format;
  Table table({"tensor", "dtype", "shape", "amax", "rms", "zero", "non-finite", "E4M3", "E5M2", "FP16"});
  int64_t values = 0;
  for (const app::TensorReport& report : reports) {
    const app::TensorStatistics& statistics = report.statistics;
    values += statistics.count;
    table.add({report.name, report.dtype, fmt::format("{}", report.shape), fmt::format("{:.4g}", statistics.amax),
               fmt::format("{:.4g}", statistics.rms), percent(statistics.zeros, statistics.count),
               percent(statistics.non_finite, statistics.count), bits(statistics.headroom_bits(Format::kE4m3)),
               bits(statistics.headroom_bits(Format::kE5m2)), bits(statistics.headroom_bits(Format::kFp16))});
  }
  fmt::print(
      "{}{}, {:.2f} M values. The last three columns: headroom in bits, log2(largest value of the format / amax), "
      "unscaled.\n",
      table.text(), counted(std::ssize(reports), "tensor"), static_cast<double>(values) / 1e6);
}

void add_shares(std::vector<std::string>& row, const std::optional<app::FourBitShares>& shares) {
  for (const double app::FourBitShares::*share :
       {&app::FourBitShares::saturated, &app::FourBitShares::flushed, &app::FourBitShares::flushed_blocks}) {
    row.push_back(shares ? fmt::format("{:.2f}%", 100 * (*shares).*share) : "-");
  }
}

// A second table, as it says nothing of what is no matrix.
void print_four_bits(const std::vector<app::TensorReport>& reports) {
  Table table({"four bits", "dtype", "NVFP4 saturated", "flushed", "blocks", "MXFP4 saturated", "flushed", "blocks"});
  int64_t matrices = 0;
  for (const app::TensorReport& report : reports) {
    if (!report.has_four_bits()) continue;
    ++matrices;
    std::vector<std::string> row = {report.name, report.dtype};
    add_shares(row, report.nvfp4);
    add_shares(row, report.mxfp4);
    table.add(std::move(row));
  }
  if (matrices == 0) return;
  fmt::print(
      "\n{}{} as codes in blocks along rows: values beyond the largest code, values that become zero, and blocks that do "
      "as a whole. Of codes in the file: the largest codes, zeros, and blocks of zeros.\n",
      table.text(), counted(matrices, "matrix", "matrices"));
}

void expect_finite(const std::vector<app::TensorReport>& reports) {
  const auto is_bad = [](const app::TensorReport& report) { return report.statistics.non_finite > 0; };
  const auto count = std::ranges::count_if(reports, is_bad);
  if (count == 0) return;
  app::report_not_finite("inspect: expected finite values, got Inf or NaN in {}{}",
                         std::ranges::find_if(reports, is_bad)->name,
                         count == 1 ? "" : fmt::format(" and {} more", count - 1));
}

int run(const InspectOptions& options) {
  const std::vector<app::TensorReport> reports = app::inspect(options.path, print_warning);
  app::JsonLines lines = app::JsonLines::create(options.json);
  for (const app::TensorReport& report : reports) lines.write(app::to_json(report));
  print(reports);
  print_four_bits(reports);
  app::check_codes(options.path);
  expect_finite(reports);
  return kExitOk;
}

}  // namespace

Command inspect_command() {
  const auto options = std::make_shared<InspectOptions>();
  return {
      .name = "inspect",
      .summary =
          "What the tensors of a model, a safetensors file, a checkpoint or a run hold, and the headroom of each format",
      .options = {{"path", "FILE|DIR", path(options->path, PathMust::kExist), "what to look at", Need::kPositional},
                  report_option(options->json, "one JSON object a tensor")},
      .run = [options](const nlohmann::json&) { return run(*options); }};
}

}  // namespace plimsoll::cli
