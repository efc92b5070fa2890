#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "plimsoll/app/error.h"
#include "plimsoll/app/line/line.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/threads_option.h"

namespace plimsoll::cli {
namespace {

using namespace std::string_literals;
using nlohmann::json;

constexpr size_t kShownValues = 8;  // of the values with least headroom

struct LineCommand {
  app::LineOptions options;
  int64_t threads = 0;
  std::filesystem::path audit;
};

std::string shown(const json& value, const char* format) {
  return value.is_null() ? "NaN" : fmt::format(fmt::runtime(format), value.get<double>());
}

// Zero has none.
std::string bits(const json& row, const char* member) {
  if (row.at("amax") == 0) return "-";
  return row.contains(member) ? shown(row.at(member), "{:.1f}") : "-";
}

std::string planned_name(const json& line) { return line.at("codes").get<std::string>() + " planned"; }

void print_formats(const json& line) {
  Table table({"format", "holds", "finite", "perplexity", "KL, nats", "99.9 %", "top 1", "bytes a weight"});
  const std::string planned = planned_name(line);
  for (const std::string& name : {"bf16"s, "fp16"s, "fp16 gauged"s, "fp8"s, "nvfp4"s, "mxfp4"s, planned}) {
    if (!line.at("formats").contains(name)) continue;
    const json& entry = line.at("formats").at(name);
    const auto yes = [&](const char* member) { return entry.at(member).get<bool>() ? "yes" : "no"; };
    table.add({name, yes("holds"), yes("finite"), shown(entry.at("perplexity"), "{:.6g}"),
               shown(entry.at("logits_kl"), "{:.3g}"), shown(entry.at("logits_kl_p999"), "{:.3g}"),
               shown(entry.at("top1_agreement"), "{:.4f}"), shown(entry.at("bytes_per_weight"), "{:.2f}")});
  }
  fmt::print("{}against fp32, on {} held out; holds: a mean KL of at most {} nats\n", table.text(),
             counted(line.at("tokens").at("held_out").get<int64_t>(), "token"), line.at("max_kl").get<double>());
}

void print_values(const json& line) {
  Table table({"least headroom in FP16", "largest", "bits", "bits of any input"});
  const json& rows = line.at("values");
  for (size_t i = 0; i < std::min(rows.size(), kShownValues); ++i) {
    const json& row = rows[i];
    table.add({row.at("name").get<std::string>(), shown(row.at("amax"), "{:.3g}"), bits(row, "headroom_bits"),
               bits(row, "bound_headroom_bits")});
  }
  fmt::print("{}", table.text());
}

void print_plan(const json& line) {
  const json& plan = line.at("plan");
  if (plan.is_null()) return;
  const json& names = plan.at("high_precision");
  const json& products = line.at("products");
  const auto wide =
      std::ranges::count_if(products, [](const json& each) { return each.at("high_precision").get<bool>(); });
  const auto before = static_cast<int64_t>(names.size()) - wide;  // a plan that the source had
  fmt::print("plan: {} of {} products stay in BF16{}, {:.1f} % of the weights are codes, {}\n", wide, products.size(),
             before > 0 ? fmt::format(" beside {} of the source's plan", before) : std::string(),
             100 * plan.at("narrow_share").get<double>(),
             counted(plan.at("measurements").get<int64_t>(), "measurement"));
  for (const json& name : names) write_line("  " + name.get<std::string>());
}

void print(const json& line, const app::LineOptions& options) {
  print_values(line);
  print_formats(line);
  print_plan(line);
  const json& gauge = line.at("gauge");
  if (gauge.contains("error")) write_line("gauge: " + gauge.at("error").get<std::string>());
  write_line(options.out.native());
}

// The promise of the codes, with a plan or where they need none, judged on the text that is held out.
void check_codes(const json& line) {
  const json& plan = line.at("plan");
  const double most = line.at("max_kl").get<double>();
  if (!plan.is_null() && !plan.at("is_within").get<bool>()) {
    app::fail("line: expected a mean KL of at most {} nats, got {} +- {} with all products in BF16", most,
              shown(plan.at("search_kl"), "{:.3g}"), shown(plan.at("search_standard_error"), "{:.2g}"));
  }
  const std::string name = plan.is_null() ? line.at("codes").get<std::string>() : planned_name(line);
  const json& chosen = line.at("formats").at(name);
  if (!chosen.at("holds").get<bool>()) {
    app::fail(
        "line: {}: expected a mean KL of at most {} nats on the text held out, got {}, and {} on that to search with",
        name, most, shown(chosen.at("logits_kl"), "{:.3g}"), shown(chosen.at("search_kl"), "{:.3g}"));
  }
}

int run_line(const LineCommand& command) {
  use_threads(command.threads);
  AuditFile audit(command.audit);
  const json line = app::draw_line(command.options);
  audit.write();
  print(line, command.options);
  check_codes(line);
  return kExitOk;
}

}  // namespace

Command line_command() {
  const auto command = std::make_shared<LineCommand>();
  app::LineOptions& options = command->options;
  options.warn = print_warning;
  options.progress = [](const std::string& what) { write_text(fmt::format("measuring {}\n", what)); };
  return {
      .name = "line",
      .summary =
          "How far a decoder or a T5 may be loaded: every format on your text, FP16 gauged where it fails, and "
          "which products codes must spare; writes a model that keeps to it",
      .options = {{"model", "DIR", path(options.model, PathMust::kExist),
                   "a Hugging Face directory of a decoder or a T5", Need::kRequired},
                  {"data", "FILE", path(options.data, PathMust::kExist),
                   "half to search with, half held out: a text; of a T5 a text a line, or *.jsonl: objects with a "
                   "text or input_ids, and a target, or what FP32 writes",
                   Need::kRequired},
                  {"out", "DIR", path(options.out), "the directory to make", Need::kRequired},
                  {"max-kl", "X", number(options.max_kl, {.from = 0}),
                   "mean KL from FP32's next token that a format may cost, nats"},
                  {"codes", "NAME", choice(options.codes, app::kLineCodes),
                   "fp8, nvfp4 or mxfp4: the codes that the model is to have, for which the plan is made"},
                  {"context", "N", integer(options.context, {.from = 1, .to = 1 << 20}),
                   "tokens of a window, instead of 512; not of a T5"},
                  {"tokens", "N", integer(options.tokens, {.from = 4}), "of the text, or of a T5's targets, at most"},
                  {"measurements", "N", integer(options.measurements, {.from = 1, .to = 1 << 20}),
                   "plans that are measured at most, but as many as it takes to find one, and exponents"},
                  threads_option(command->threads),
                  audit_option(command->audit)},
      .run = [command](const json&) { return run_line(*command); }};
}

}  // namespace plimsoll::cli
