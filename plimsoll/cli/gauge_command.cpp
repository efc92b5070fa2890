#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/models/load.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

constexpr std::string_view kBatchOption = "--batch";

constexpr size_t kRows = 8;  // of the tensors with least headroom

struct GaugeCommand {
  app::GaugeOptions options;
  std::optional<int64_t> step_targets;
  std::vector<std::string> of_t5, of_decoder;  // options of one kind of model that were typed
  int64_t threads = 0;
  std::filesystem::path audit;
};

double headroom(const json& tensor, const char* member) {
  const json& value = tensor.at(member);
  return value.is_null() ? std::numeric_limits<double>::infinity() : value.get<double>();
}

// The tensors that had least headroom, before and after.
void print_headroom(const json& certificate) {
  std::vector<json> tensors = certificate.at("values").get<std::vector<json>>();
  for (const json& weight : certificate.at("weights")) tensors.push_back(weight);
  std::stable_sort(tensors.begin(), tensors.end(), [](const json& a, const json& b) {
    return headroom(a, "headroom_bits_before") < headroom(b, "headroom_bits_before");
  });
  tensors.resize(std::min(tensors.size(), kRows));
  Table table({"least headroom in FP16, bits", "before", "after", "times 2^"});
  for (const json& tensor : tensors) {
    const auto bits = [&](const char* member) {
      return tensor.at("amax") == 0 ? "-" : fmt::format("{:.1f}", headroom(tensor, member));
    };
    table.add({tensor.at("name").get<std::string>(), bits("headroom_bits_before"), bits("headroom_bits"),
               tensor.at("exponent").dump()});
  }
  fmt::print("{}", table.text());
}

// Single channels, whose exponents come to those of the table.
void print_channels(const json& certificate) {
  for (const auto& [pair, channels] : certificate.at("exponents").at("channels").items()) {
    std::vector<std::string> shown;
    for (const auto& [channel, exponent] : channels.items())
      shown.push_back(fmt::format("{} 2^{}", channel, exponent.dump()));
    const size_t more = shown.size() - std::min(shown.size(), kRows);
    shown.resize(shown.size() - more);
    fmt::print("channels of {}: {}{}\n", pair, fmt::join(shown, ", "),
               more > 0 ? fmt::format(", and {} more", more) : "");
  }
}

void print_search(const json& certificate) {
  if (!certificate.contains("search") || certificate.at("search").at("measurements") == 0) return;
  const json& search = certificate.at("search");
  const auto error = [&](const char* member) {
    return search.at(member).is_null() ? std::string("Inf or NaN")
                                       : fmt::format("{:.2g}", search.at(member).get<double>());
  };
  fmt::print("search: {} measured on {}; relative L2 of the {} {}, with those by amaxes alone {}\n",
             counted(search.at("measurements").get<int64_t>(), "exponent"),
             counted(search.at("input_tokens").get<int64_t>(), "token"),
             fmt::join(search.at("of").get<std::vector<std::string>>(), " plus of the "), error("relative_l2"),
             error("by_amaxes_relative_l2"));
}

void print_train(const json& train) {
  const std::string targets =
      counted(train.at("targets_a_step").get<int64_t>(), "token that counts", "tokens that count");
  if (train.at("loss_scale").is_null()) {
    fmt::print("train: FP16's gradients are Inf or NaN without a loss scale, for {} in a step\n", targets);
    return;
  }
  const auto scale = train.at("loss_scale").get<double>();
  fmt::print("train: {} for {} in a step; relative L2 of the gradients {:.2g}\n",
             scale == 1 ? "no loss scale is needed" : fmt::format("a loss scale of {} is left", scale), targets,
             train.at("gradients_relative_l2").get<double>());
}

void print(const json& certificate, const app::GaugeOptions& options) {
  print_headroom(certificate);
  print_channels(certificate);
  if (const auto below = std::ssize(certificate.at("below_headroom")); below > 0) {
    fmt::print("{} less than {}; the certificate names {}\n", counted(below, "tensor has", "tensors have"),
               counted(options.headroom_bits, "bit"), below == 1 ? "it" : "them");
  }
  print_search(certificate);
  if (certificate.contains("train")) print_train(certificate.at("train"));
  const json& fp16 = certificate.at("fp16");
  const char* bits = certificate.at("fp32").at("bit_identical").get<bool>()
                         ? "the source's bits"
                         : "other bits, of the weights under rounded_weights in the certificate";
  if (fp16.contains("encoder_relative_l2")) {
    fmt::print("fp32: {}; fp16: finite, relative L2 {:.2g} at the encoder's output\n", bits,
               fp16.at("encoder_relative_l2").get<double>());
  } else if (fp16.contains("logits_relative_l2")) {
    fmt::print("fp32: {}; fp16: finite, relative L2 {:.2g} of the logits\n", bits,
               fp16.at("logits_relative_l2").get<double>());
  } else {
    fmt::print("fp32: {}; fp16: Inf or NaN remain\n", bits);
  }
  fmt::print("{}\n", options.out.native());
}

json gauge_until_interrupted(app::GaugeOptions options) {
  const app::InterruptScope interrupt;
  options.check = [&] { interrupt.stop_if_requested("gauge"); };
  return app::gauge_checkpoint(options);
}

void expect_options_of(const GaugeCommand& command) {
  const std::filesystem::path& model = command.options.model;
  const bool is_decoder = app::is_run(model) || models::is_decoder_directory(model);
  const std::vector<std::string>& others = is_decoder ? command.of_t5 : command.of_decoder;
  if (!others.empty()) {
    app::refuse("{}: expected a {}, got {}", others.front(), is_decoder ? "T5" : "decoder-only model", model.native());
  }
  std::vector<std::string> of_inputs = command.of_decoder;
  if (std::ranges::find(command.of_t5, kBatchOption) != command.of_t5.end()) of_inputs.emplace_back(kBatchOption);
  if (!of_inputs.empty() && command.options.calibrate.empty()) {
    app::refuse("gauge: expected --calibrate beside {}", of_inputs.front());
  }
}

int run_gauge(GaugeCommand& command) {
  if (command.step_targets && !command.options.train) app::refuse("gauge: expected --train beside --step-targets");
  expect_options_of(command);
  command.options.step_targets = command.step_targets.value_or(command.options.step_targets);
  command.options.progress = [](const std::string& what) { write_line(fmt::format("measuring {}", what)); };
  use_threads(command.threads);
  AuditFile audit(command.audit);
  const json certificate = gauge_until_interrupted(command.options);
  audit.write();
  print(certificate, command.options);
  if (!certificate.at("fp16").at("finite").get<bool>()) {
    app::report_not_finite("gauge: expected finite outputs in fp16, got Inf or NaN; {} has the checkpoint all the same",
                           command.options.out.native());
  }
  return kExitOk;
}

}  // namespace

Command gauge_command() {
  const auto command = std::make_shared<GaugeCommand>();
  app::GaugeOptions& options = command->options;
  options.warn = print_warning;
  return {
      .name = "gauge",
      .summary = "Rewrite a checkpoint of a T5 or a decoder, exactly, so that plain FP16 runs it, with a certificate",
      .options = {{"model", "DIR", path(options.model, PathMust::kExist),
                   "a Hugging Face directory of a T5 or a decoder, or a run of plimsoll train", Need::kRequired},
                  {"out", "DIR", path(options.out), "the directory to make", Need::kRequired},
                  {"calibrate", "FILE", path(options.calibrate, PathMust::kExist),
                   "inputs: a text a line, or *.jsonl: objects with input_ids or a text, of a T5 with "
                   "decoder_input_ids, of a decoder also what finetune reads, messages among it; "
                   "without: the worst case, from the weights"},
                  {"headroom-bits", "N", integer(options.headroom_bits, {.from = 0, .to = 12}),
                   "between the largest value of each tensor and FP16's"},
                  {"measurements", "N",
                   noted(integer(options.measurements, {.from = 0, .to = 1 << 20}), command->of_decoder),
                   "exponents at most whose FP16 error is measured, of a decoder; 0: amaxes alone choose"},
                  {"train", "", toggle(options.train),
                   "the gradients count, too, and the certificate says which loss scale FP16 training needs"},
                  {"step-targets", "N", integer(command->step_targets, {.from = 1, .to = int64_t{1} << 40}),
                   "--train: tokens that count in a step, whose loss is their mean (2048)"},
                  {"batch", "N", noted(integer(options.batch, {.from = 1, .to = 1 << 20}), command->of_t5),
                   "T5: inputs at a time"},
                  {"max-new-tokens", "N",
                   noted(integer(options.max_new_tokens, {.from = 1, .to = 1 << 20}), command->of_t5),
                   "T5: written to calibrate the decoder on, for inputs without decoder_input_ids"},
                  threads_option(command->threads),
                  audit_option(command->audit)},
      .run = [command](const json&) { return run_gauge(*command); }};
}

}  // namespace plimsoll::cli
