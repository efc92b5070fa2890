#include <fmt/format.h>

#include <limits>
#include <memory>
#include <span>

#include "plimsoll/app/error.h"
#include "plimsoll/app/parity.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/io/atomic_file.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

const auto kParityDtypes = std::span(models::kT5Dtypes).subspan(1);  // without "stored"

struct ParityCommand {
  app::ParityOptions options;
  std::filesystem::path json_file;
  int64_t threads = 0;
};

std::string cell(const json& result, const char* member) {
  const auto found = result.find(member);
  if (found == result.end()) return "-";
  return found->is_null() ? "NaN" : fmt::format("{:.3g}", found->get<double>());
}

// The least of the headroom map with the name of its value, or where values stopped being finite.
std::string least_headroom(const json& result) {
  if (const auto first = result.find("first_non_finite"); first != result.end()) {
    return fmt::format("Inf or NaN from {}", first->get<std::string>());
  }
  std::string name;
  double least = std::numeric_limits<double>::infinity();
  const json map = result.value("headroom", json::object());
  for (const auto& [value, bits] : map.items()) {
    if (bits.is_null() || bits.get<double>() >= least) continue;
    least = bits.get<double>();
    name = value;
  }
  return name.empty() ? "-" : fmt::format("{:.1f} bits at {}", least, name);
}

void print_parity(const json& result, const std::vector<models::T5Dtype>& dtypes) {
  Table table({"dtype", "finite", "encoder L2", "KL, nats", "top 1", "same text", "accuracy", "least headroom"});
  for (const models::T5Dtype value : dtypes) {
    const std::string dtype(recipe::name_of(kParityDtypes, value));
    const json& entry = result.at("dtypes").at(dtype);
    table.add({dtype, entry.at("finite").get<bool>() ? "yes" : "no", cell(entry, "encoder_relative_l2"),
               cell(entry, "logits_kl"), cell(entry, "top1_agreement"), cell(entry, "string_match"),
               cell(entry, "accuracy"), least_headroom(entry)});
  }
  fmt::print("{}{} inputs, {} decoder tokens, each dtype against fp32\n", table.text(),
             result.at("inputs").get<int64_t>(), result.at("decoder_tokens").get<int64_t>());
}

int run_parity(const ParityCommand& command) {
  use_threads(command.threads);
  const json result = app::parity(command.options);
  if (!command.json_file.empty()) io::write_file(command.json_file, result.dump(2) + "\n");
  print_parity(result, command.options.dtypes);
  for (const models::T5Dtype value : command.options.dtypes) {
    const std::string dtype(recipe::name_of(kParityDtypes, value));
    const json& entry = result.at("dtypes").at(dtype);
    if (entry.at("finite").get<bool>()) continue;
    app::report_not_finite("parity: expected finite outputs in {}, got Inf or NaN, first in {}", dtype,
                           entry.value("first_non_finite", "the outputs"));
  }
  return kExitOk;
}

}  // namespace

Command parity_command() {
  const auto command = std::make_shared<ParityCommand>();
  app::ParityOptions& options = command->options;
  options.warn = print_warning;
  return {
      .name = "parity",
      .summary = "How far a T5 in several dtypes is from itself in FP32, on your data, and where its headroom ends",
      .options = {{"model", "DIR", path(options.model, PathMust::kExist), "a Hugging Face directory", Need::kRequired},
                  {"data", "FILE", path(options.data, PathMust::kExist),
                   "a text a line, or *.jsonl: objects with a text or input_ids, decoder_input_ids, and a target",
                   Need::kRequired},
                  {"dtypes", "A,B", choices(options.dtypes, kParityDtypes), "of fp32, bf16, fp16, fp8"},
                  {"fixes", "NAME", choice(options.numerics, models::kT5Fixes), "of fp16, as plimsoll t5"},
                  {"batch", "N", integer(options.batch, {.from = 1, .to = 1 << 20}), "inputs at a time"},
                  {"max-new-tokens", "N", integer(options.max_new_tokens, {.from = 1, .to = 1 << 20}),
                   "of each text that is written"},
                  threads_option(command->threads),
                  {"json", "FILE", path(command->json_file), "write all figures and the headroom map to FILE"}},
      .run = [command](const json&) { return run_parity(*command); }};
}

}  // namespace plimsoll::cli
