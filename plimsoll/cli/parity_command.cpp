#include <fmt/format.h>

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/parity.h"
#include "plimsoll/app/parity_limits.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/text/parity_text.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/models/load.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

const auto kParityDtypes = std::span(models::kT5Dtypes).subspan(1);  // without "stored"

struct ParityCommand {
  app::ParityOptions options;
  bool has_dtypes = false;                     // that were typed
  std::vector<std::string> of_t5, of_decoder;  // options of one kind of model that were typed
  std::filesystem::path against;
  std::optional<int64_t> context;
  int64_t tokens = 1 << 16;
  app::ParityLimits limits;
  std::optional<app::Outlier> outlier;
  std::filesystem::path json_file, audit;
  int64_t threads = 0;
};

std::string cell(const json& result, const char* member, int digits = 3) {
  const auto found = result.find(member);
  if (found == result.end()) return "-";
  return found->is_null() ? "NaN" : fmt::format("{:.{}g}", found->get<double>(), digits);
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
  fmt::print("{}{}, {}, each dtype against fp32\n", table.text(), counted(result.at("inputs").get<int64_t>(), "input"),
             counted(result.at("decoder_tokens").get<int64_t>(), "decoder token"));
}

void print_text_parity(const json& result, const std::vector<models::WeightDtype>& dtypes) {
  Table table(
      {"dtype", "finite", "perplexity", "KL, nats", "99 %", "99.9 %", "top 1", "top 5", "bytes a weight", "tokens/s"});
  const auto add = [&](const std::string& name, const json& entry) {
    table.add({name, entry.at("finite").get<bool>() ? "yes" : "no", cell(entry, "perplexity", 6),
               cell(entry, "logits_kl"), cell(entry, "logits_kl_p99"), cell(entry, "logits_kl_p999"),
               cell(entry, "top1_agreement"), cell(entry, "top5_agreement"), cell(entry, "bytes_per_weight"),
               fmt::format("{:.0f}", entry.at("tokens_per_s").get<double>())});
  };
  const bool has_other = result.contains("reference");
  if (has_other) add("reference", result.at("reference"));
  for (const models::WeightDtype value : dtypes) {
    const std::string dtype(recipe::name_of(kParityDtypes, value));
    add(dtype, result.at("dtypes").at(dtype));
  }
  fmt::print("{}{}, each dtype {}against fp32{}\n", table.text(), counted(result.at("tokens").get<int64_t>(), "token"),
             has_other ? "of " + result.at("model").get<std::string>() + " " : "",
             has_other ? " of " + result.at("against").get<std::string>() + ", the reference" : "");
}

Field parity_dtypes(ParityCommand& command) {
  Field field = choices(command.options.dtypes, kParityDtypes);
  field.set = [&command, set = field.set](const std::string& label, const std::vector<std::string>& typed) {
    set(label, typed);
    command.has_dtypes = true;
  };
  return field;
}

// CHANNEL,LAYER,FACTOR.
Field outlier(std::optional<app::Outlier>& target) {
  return {.values = Field::Values::kOne,
          .set =
              [&target](const std::string& label, const std::vector<std::string>& typed) {
                std::vector<std::string> parts(1);
                for (const char each : typed.back()) {
                  each == ',' ? static_cast<void>(parts.emplace_back()) : parts.back().push_back(each);
                }
                if (parts.size() != 3) app::refuse("{}: expected CHANNEL,LAYER,FACTOR, got '{}'", label, typed.back());
                app::Outlier value;
                constexpr Range<int64_t> kPlace{.from = 0};
                integer(value.channel, kPlace).set(label + " CHANNEL", {parts[0]});
                integer(value.layer, kPlace).set(label + " LAYER", {parts[1]});
                number(value.factor, {.from = 0x1p-100, .to = 0x1p100}).set(label + " FACTOR", {parts[2]});
                target = value;
              },
          .get =
              [&target] {
                return target ? json(fmt::format("{},{},{}", target->channel, target->layer, target->factor)) : json();
              }};
}

// The usual dtypes, of a directory of codes those of values; against another directory codes are judged as they are served.
std::vector<models::WeightDtype> usual_dtypes(const ParityCommand& command) {
  std::vector<models::WeightDtype> dtypes = command.options.dtypes;
  if (!models::has_coded_weights(command.options.model)) return dtypes;
  if (!command.against.empty()) return {models::WeightDtype::kBf16};
  std::erase_if(dtypes, [](models::WeightDtype dtype) { return models::code_kind(dtype).has_value(); });
  return dtypes;
}

void check_against(const ParityCommand& command, bool is_decoder) {
  app::expect_hugging_face_directory("--against", command.against);
  const std::filesystem::path& odd = is_decoder ? command.against : command.options.model;
  if (!is_decoder || !models::is_decoder_directory(command.against)) {
    app::refuse("--against: expected two models other than T5, got {}", odd.native());
  }
  if (command.outlier) app::refuse("--inject: expected one directory, got {} beside it", command.against.native());
}

void expect_options_of(const ParityCommand& command, bool is_decoder) {
  const std::vector<std::string>& others = is_decoder ? command.of_t5 : command.of_decoder;
  if (others.empty()) return;
  app::refuse("{}: expected a {}, got {}", others.front(), is_decoder ? "T5" : "model other than T5",
              command.options.model.native());
}

json measured(const ParityCommand& command, const app::ParityOptions& options, bool is_decoder) {
  json result = is_decoder ? app::text_parity({.model = options.model,
                                               .against = command.against,
                                               .data = options.data,
                                               .dtypes = options.dtypes,
                                               .context = command.context,
                                               .tokens = command.tokens,
                                               .outlier = command.outlier,
                                               .warn = options.warn,
                                               .check = options.check})
                           : app::parity(options);
  options.check();
  return result;
}

int run_parity(const ParityCommand& command) {
  std::optional<app::InterruptScope> interrupt(std::in_place);
  use_threads(command.threads);
  app::ParityOptions options = command.options;
  app::expect_hugging_face_directory("--model", options.model);
  if (!command.has_dtypes) options.dtypes = usual_dtypes(command);
  AuditFile audit(command.audit);
  const bool is_decoder = models::is_decoder_directory(options.model);
  if (!command.against.empty()) check_against(command, is_decoder);
  expect_options_of(command, is_decoder);
  options.check = [&] { interrupt->stop_if_requested("parity"); };
  const json result = measured(command, options, is_decoder);
  interrupt.reset();
  audit.write();
  if (!command.json_file.empty()) io::write_file(command.json_file, result.dump(2) + "\n");
  is_decoder ? print_text_parity(result, options.dtypes) : print_parity(result, options.dtypes);
  std::vector<std::string> dtypes;
  for (const models::T5Dtype value : options.dtypes) dtypes.emplace_back(recipe::name_of(kParityDtypes, value));
  app::check_parity(result, dtypes, command.limits);
  if (result.contains("reference") && !result.at("reference").at("finite").get<bool>()) {
    app::report_not_finite("parity: expected finite outputs of {} in fp32, got Inf or NaN", command.against.native());
  }
  for (const std::string& dtype : dtypes) {
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
      .summary =
          "How far a model in several dtypes is from itself in FP32 on your data, and where a T5's headroom ends",
      .options =
          {{"model", "DIR", path(options.model, PathMust::kExist), "a Hugging Face directory", Need::kRequired},
           {"data", "FILE", path(options.data, PathMust::kExist),
            "T5: a text a line, or *.jsonl: objects with a text or input_ids, decoder_input_ids, and a target; "
            "others: a text",
            Need::kRequired},
           {"against", "DIR", path(command->against, PathMust::kExist),
            "not T5: the directory whose FP32 is the reference, instead of --model: values that its codes were made of"},
           {"dtypes", "A,B", parity_dtypes(*command),
            "of fp32, bf16, fp16, fp8, nvfp4, mxfp4; codes: the usual ones without fp8, with --against bf16"},
           {"fixes", "NAME", noted(choice(options.numerics, models::kT5Fixes), command->of_t5),
            "T5: of fp16, as plimsoll t5"},
           {"batch", "N", noted(integer(options.batch, {.from = 1, .to = 1 << 20}), command->of_t5),
            "T5: inputs at a time"},
           {"max-new-tokens", "N", noted(integer(options.max_new_tokens, {.from = 1, .to = 1 << 20}), command->of_t5),
            "T5: of each text that is written"},
           {"context", "N", noted(integer(command->context, {.from = 1, .to = 1 << 20}), command->of_decoder),
            "tokens that a model other than T5 sees at a time, instead of 512"},
           {"tokens", "N", noted(integer(command->tokens, {.from = 2}), command->of_decoder),
            "of the text that it reads, at most"},
           {"max-kl", "X", number(command->limits.max_kl, {.from = 0}),
            "exit code 1 if the mean KL of a dtype is more, nats"},
           {"min-agree", "X", number(command->limits.min_agree, {.from = 0, .to = 1}),
            "exit code 1 if a smaller share of the tokens has fp32's likeliest"},
           {"max-ppl", "X", noted(number(command->limits.max_ppl, {.from = 1}), command->of_decoder),
            "not T5: exit code 1 if the perplexity of a dtype is more"},
           {"inject", "CHANNEL,LAYER,FACTOR", noted(outlier(command->outlier), command->of_decoder),
            "not T5: an outlier in that channel of the attention's values, of which the output projection takes the "
            "factor back: what the formats make of it"},
           threads_option(command->threads),
           audit_option(command->audit),
           report_option(command->json_file, "all figures and the headroom map")},
      .run = [command](const json&) { return run_parity(*command); }};
}

}  // namespace plimsoll::cli
