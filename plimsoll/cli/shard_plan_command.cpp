#include <fmt/format.h>

#include <memory>

#include "plimsoll/app/checkpoint/shard_plan.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/train_table.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/models/presets.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

struct ShardPlanCommand {
  app::ShardPlanOptions options;
  std::optional<double> tokens_per_second, bandwidth;
  std::filesystem::path json_file;
};

std::string size(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

json to_json(const app::ShardPlan& plan) {
  json runs = json::array();
  for (const app::PlannedRun& run : plan.runs) {
    const shard::PlannedMemory& memory = run.step.memory;
    runs.push_back({{"world", run.world},
                    {"memory_bytes",
                     {{"parameters", memory.parameters},
                      {"gradients", memory.gradients},
                      {"states", memory.states},
                      {"travelling", memory.travelling},
                      {"activations", memory.activations},
                      {"total", memory.total()}}},
                    {"sent_bytes", {{"parameters", run.step.sent.parameters}, {"gradients", run.step.sent.gradients}}},
                    {"network_seconds", run.step.network_seconds},
                    {"memory_seconds", run.step.memory_seconds},
                    {"step_seconds", run.step.step_seconds},
                    {"tokens_per_second", run.tokens_per_second}});
  }
  return {{"model", plan.shape},
          {"parameters", plan.parameters},
          {"activation_bytes_per_token", plan.activation_bytes_per_token},
          {"runs", std::move(runs)}};
}

void print(const app::ShardPlan& plan) {
  fmt::print("{} parameters, {:.0f} bytes of activations a token; of each process:\n", plan.parameters,
             plan.activation_bytes_per_token);
  Table table({"processes", "memory", "parameters", "gradients", "states", "travelling", "activations", "sent a step",
               "network s", "memory s", "step s", "tokens/s of all", "share"});
  for (const app::PlannedRun& run : plan.runs) {
    const shard::PlannedMemory& memory = run.step.memory;
    table.add({fmt::to_string(run.world), size(memory.total()), size(memory.parameters), size(memory.gradients),
               size(memory.states), size(memory.travelling), size(memory.activations), size(run.step.sent.total()),
               fmt::format("{:.3g}", run.step.network_seconds), fmt::format("{:.3g}", run.step.memory_seconds),
               fmt::format("{:.4g}", run.step.step_seconds), fmt::format("{:.0f}", run.tokens_per_second),
               fmt::format("{:.0f} %", 100 * plan.alone_seconds / run.step.step_seconds)});
  }
  fmt::print("{}", table.text());
}

int run_shard_plan(ShardPlanCommand& command) {
  command.options.tokens_per_second = *command.tokens_per_second;
  command.options.bandwidth = *command.bandwidth;
  const app::ShardPlan plan = app::plan_shards(command.options);
  if (!command.json_file.empty()) io::write_file(command.json_file, to_json(plan).dump(2) + "\n");
  print(plan);
  return kExitOk;
}

}  // namespace

Command shard_plan_command() {
  const auto command = std::make_shared<ShardPlanCommand>();
  app::ShardPlanOptions& options = command->options;
  app::TrainOptions& run = options.run;
  run.shard = shard::Sharing::kFsdp;
  constexpr Range<double> kPositive{.from = kAboveZero};
  return {.name = "shard-plan",
          .summary = "Say what training on many processes would take of each: memory, bytes sent, time",
          .options = {{"model", "NAME", choice(run.model, models::presets()),
                       "sizes of a new model; others by the four options below"},
                      {"layers", "N", integer(run.layers, kLayers), "instead of the model's"},
                      {"dim", "N", integer(run.dim, kSizes), "instead of the model's"},
                      {"heads", "N", integer(run.heads, kSizes), "instead of the model's; divides dim"},
                      {"context", "N", integer(run.context, kSizes), "instead of the model's"},
                      {"recipe", "NAME", training_recipe(run.recipe),
                       "as plimsoll train; auto: as if all products were wide"},
                      {"shard", "HOW", choice(run.shard, app::kSharings), "what processes share, as plimsoll train"},
                      {"batch", "N", integer(run.batch, kSizes), "sequences in a step, of each process"},
                      {"world", "N,...", integers(options.world, {.from = 1, .to = 10'000'000}), "processes"},
                      {"tokens-per-second", "X", number(command->tokens_per_second, kPositive),
                       "of one process alone, as plimsoll train prints it", Need::kRequired},
                      {"bandwidth", "X", number(command->bandwidth, kPositive),
                       "GB/s that a process sends while it receives as many", Need::kRequired},
                      {"latency", "X", number(options.latency, {.from = 0}), "microseconds for a message"},
                      {"memory-bandwidth", "X", number(options.memory_bandwidth, kPositive),
                       "GB/s that a process reads and writes, for the update and for gradients that are sent"},
                      {"one-machine", "", toggle(options.one_machine),
                       "processes share the cores that they compute and send with"},
                      report_option(command->json_file, "the plan, too,")},
          .run = [command](const json&) { return run_shard_plan(*command); }};
}

}  // namespace plimsoll::cli
