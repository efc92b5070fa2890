#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <memory>

#include "plimsoll/app/error.h"
#include "plimsoll/app/finetune/adapters.h"
#include "plimsoll/app/finetune/finetune.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/lora_field.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/progress.h"
#include "plimsoll/cli/show_data.h"
#include "plimsoll/cli/train_run.h"
#include "plimsoll/cli/train_table.h"
#include "plimsoll/cli/watch_option.h"
#include "plimsoll/models/load.h"

namespace plimsoll::cli {
namespace {

// Rows of `plimsoll train` that fine-tuning has none of, or has otherwise.
constexpr std::array kNotOurs = {"data",    "steps",  "model", "config-of", "layers",     "dim",          "heads",
                                 "context", "warmup", "lr",    "clip",      "eval-every", "eval-windows", "save-every"};

constexpr std::array<recipe::Named<bool>, 2> kYesOrNo = {{{"yes", true}, {"no", false}}};

struct FinetuneCommand {
  app::FinetuneOptions options;
  bool full = false;
  std::optional<double> lr, clip;
  std::filesystem::path config, audit;
};

std::vector<Option> finetune_table(FinetuneCommand& command) {
  constexpr Range<int64_t> kFromZero{.from = 0}, kSteps{.from = 1, .to = int64_t{1} << 40};
  constexpr Range<double> kShare{.from = 0, .to = 1};
  app::FinetuneOptions& options = command.options;
  app::TrainOptions& run = options.run;
  std::vector<Option> table = {
      {"model", "DIR", path(run.source, PathMust::kExist), "a Hugging Face directory", Need::kRequired},
      {"data", "PATH...", existing_paths(run.data),
       "FILE.jsonl with {\"messages\"}, {\"prompt\", \"completion\"} or {\"text\"} a line, other files as texts, and "
       "directories of them",
       Need::kRequired, AcrossRanks::kSameContents},
      {"lora", "r=N,...", lora(options.lora, app::usual_lora()),
       "train low-rank adapters of a frozen base, which is what is done unless --full is typed: "
       "r=16,alpha=32,targets=all-linear,dropout=0.05, or some of these"},
      {"full", "", toggle(command.full), "train all weights"},
      {"base", "KIND", choice(options.base, app::kBases),
       "dtype of the frozen base of --lora: stored; bf16; fp8, codes of one byte"},
      {"lr", "X", number(command.lr, {.from = kAboveZero}),
       "learning rate at its peak (2e-4 of --lora, 2e-5 of --full)"},
      {"clip", "X", number(command.clip, {.from = kAboveZero}),
       "largest global norm of the gradients (1; none with --release-gradients)"},
      {"release-gradients", "", toggle(run.release_gradients),
       "--full: update each weight when its gradient is complete, and free that; without clipping"},
      {"epochs", "X", number(options.epochs, {.from = 1e-6, .to = 1e6}), "that the examples are visited"},
      {"steps", "N", integer(options.steps, kSteps), "optimizer steps, instead of epochs"},
      {"context", "N", integer(run.context, kSizes),
       "tokens of an example and of a row at most (what the model sees, at most 1024)"},
      {"overlong", "HOW", choice(options.overlong, app::kOverlongs),
       "examples beyond the context: cut, skip, or error"},
      {"pack", "HOW", choice(options.pack, kYesOrNo),
       "yes: several examples in a row, each of which sees itself alone; no: one"},
      {"train-on", "WHAT", choice(options.train_on, app::kTrainOns),
       "assistant: the assistant's messages, completions, and texts; all: every token"},
      {"eval-data", "PATH...", existing_paths(options.eval_data), "held-out examples, instead of a share",
       Need::kOptional, AcrossRanks::kSameContents},
      {"eval-share", "X", number(options.eval_share, {.from = 0, .to = 0.9}), "of the examples, held out"},
      {"warmup-share", "X", number(options.warmup_share, kShare), "of the steps, from zero to the peak"},
      {"eval-every", "N", integer(run.eval_every, kFromZero), "steps between validations; 0: an epoch"},
      {"save-every", "N", integer(run.save_every, kFromZero), "steps between checkpoints; 0: an epoch"},
      {"samples", "N", integer(options.samples, kFromZero), "replies that are shown before the run and after it"},
      {"show-data", "N", integer(options.show_data, kFromZero),
       "show the first N examples that the run would read, the tokens that count in colour, and train nothing",
       Need::kOptional, AcrossRanks::kOwn},
      {"recipe", "NAME", training_recipe(run.recipe), training_recipe_help()},
      watch_option(run.watch),
      audit_option(command.audit),
  };
  for (Option& option : train_table(run, command.config)) {
    if (std::find(kNotOurs.begin(), kNotOurs.end(), option.name) != kNotOurs.end()) continue;
    if (option.name == "out") option.need = Need::kOptional;  // --show-data writes nothing
    table.push_back(std::move(option));
  }
  return table;
}

void print_plan(const app::FinetunePlan& plan) {
  write_line(fmt::format("examples   {} to train on, {} held out; {} cut, {} skipped", plan.training, plan.held_out,
                         plan.cut, plan.skipped));
  if (plan.joined > 0) {
    write_line(
        fmt::format("           {} shares", counted(plan.joined, "reply begins in a token that the text before it",
                                                    "replies begin in a token that the text before them")));
  }
  write_line(fmt::format("tokens     {} an epoch, {} of them count", plan.tokens, plan.counted));
  write_line(fmt::format("steps      {} of {} of {} an epoch", plan.steps, counted(plan.rows, "row"),
                         counted(plan.context, "token")));
  if (plan.loss_scale) {
    const bool is_left = plan.loss_scale->kind != app::LossScale::Kind::kOfRecipe;
    write_line(fmt::format("loss scale {} by the certificate of the model{}, for {:.0f} tokens that count in a step",
                           is_left ? plan.loss_scale->text + "," : "dynamic:",
                           is_left ? "" : " gradients overflow under each that gauge tried", plan.targets_a_step));
  }
  const shard::PlannedMemory& memory = plan.memory.shared;
  if (plan.adapters > 0) {
    write_line(fmt::format("adapters   {:.2f} M parameters train", static_cast<double>(plan.adapters) / 1e6));
  }
  const double step = plan.memory.step();
  const std::string replies = plan.memory.replies() > step
                                  ? fmt::format(" while samples are written, and in a step {:.2f} GB", step / 1e9)
                                  : "";
  write_line(fmt::format(
      "memory     {:.2f} GB at most of {:.1f} M parameters{}: weights {:.2f}, gradients {:.2f}, states {:.2f}, activations "
      "{:.2f}, head and products {:.2f}, the program and what lies idle {:.2f}",
      plan.memory.total() / 1e9, static_cast<double>(plan.memory.parameters) / 1e6, replies, memory.parameters / 1e9,
      memory.gradients / 1e9, memory.states / 1e9, memory.activations / 1e9,
      (plan.memory.head + plan.memory.working + memory.travelling) / 1e9,
      (plan.memory.process + plan.memory.idle()) / 1e9));
  write_line(fmt::format("time       at least {}, at the peak of these cores", clock_text(plan.least_seconds)));
}

void print_reply(const app::SampleReply& reply) {
  write_line(fmt::format("{} {}\n  -> {}", reply.is_trained ? "after " : "before", harmless(reply.prompt),
                         harmless(reply.reply)));
}

// Fills in what follows from other options.
void complete(FinetuneCommand& command, const std::vector<Option>& table) {
  app::FinetuneOptions& options = command.options;
  if (command.full && options.lora) app::refuse("--full: expected it without --lora, got both");
  if (!command.full && !options.lora) options.lora = app::usual_lora();
  if (!command.lr) command.lr = options.lora ? app::kLoraRate : app::kFullRate;
  options.run.lr = *command.lr;
  if (options.run.release_gradients && command.clip) {
    app::refuse("--release-gradients: expected no --clip, which needs the norm of all gradients, got {}",
                *command.clip);
  }
  if (!options.run.release_gradients && !command.clip) command.clip = options.run.clip;
  options.run.clip = command.clip.value_or(std::numeric_limits<double>::infinity());
  options.run.configuration = configuration(table);
  options.run.common_to_ranks = common_values(table);
}

// Says once when the run will end, as its first steps have it; they are the second and the third where there are more.
class ExpectedEnd {
 public:
  explicit ExpectedEnd(app::TrainObserver observer) : observer_(std::move(observer)) {}

  void step(const app::StepRecord& record) {
    const auto now = std::chrono::steady_clock::now();
    if (seen_++ == 0) first_ = now;
    if (seen_ == 3 && record.step < record.steps) {
      const double seconds = std::chrono::duration<double>(now - first_).count() / 2;
      observer_.on_row(fmt::format("time       about {} more, as the first steps have it",
                                   clock_text(seconds * static_cast<double>(record.steps - record.step))));
    }
    observer_.on_step(record);
  }

 private:
  app::TrainObserver observer_;
  int64_t seen_ = 0;
  std::chrono::steady_clock::time_point first_;
};

int run_finetune(FinetuneCommand& command) {
  app::FinetuneOptions& options = command.options;
  if (!models::is_decoder_directory(options.run.source)) {
    app::refuse("--model: expected a Hugging Face directory of a decoder-only model, got {}",
                options.run.source.native());
  }
  if (options.show_data > 0) {
    show_data(options);
    return kExitOk;
  }
  if (options.run.out.empty()) app::refuse("finetune: expected --out DIR");
  if (options.run.json.empty()) options.run.json = options.run.out / "train.jsonl";
  app::check_sharing(options.run);
  app::check_adapters(options);
  AuditFile audit(app::speaks(options.run) ? command.audit : "");
  const int exit_code = print_training(options.run, [&](const app::TrainObserver& observer) {
    ExpectedEnd end(observer);
    app::TrainObserver timed = observer;
    timed.on_step = [&](const app::StepRecord& record) { end.step(record); };
    const auto print_beginning = [&](const app::FinetunePlan& plan) {  // when the data have been read, and serve
      print_configuration(options.run);
      print_plan(plan);
    };
    return app::finetune(options, {.training = timed, .on_plan = print_beginning, .on_reply = print_reply});
  });
  audit.write();
  return exit_code;
}

}  // namespace

Command finetune_command() {
  const auto command = std::make_shared<FinetuneCommand>();
  const std::vector<Option> table = finetune_table(*command);
  return {.name = "finetune",
          .summary = "Fine-tune a model of a Hugging Face directory on chats, pairs or texts",
          .options = table,
          .run = [command, table](const nlohmann::json&) {
            complete(*command, table);
            return run_finetune(*command);
          }};
}

}  // namespace plimsoll::cli
