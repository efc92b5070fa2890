#include "plimsoll/cli/train_table.h"

#include <algorithm>
#include <filesystem>

#include "plimsoll/app/error.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/cli/command_line.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/models/presets.h"
#include "plimsoll/recipe/names.h"

namespace plimsoll::cli {
namespace {

// The name of a preset, or a Hugging Face directory.
Field first_model(app::TrainOptions& options) {
  const Field names = choice(options.model, models::presets());
  return {.values = Field::Values::kOne,
          .set =
              [&options, names](const std::string& label, const std::vector<std::string>& typed) {
                auto known = recipe::names_of(models::presets());
                std::error_code ignored;
                const bool is_directory = std::filesystem::is_directory(typed.back(), ignored);
                options.source.clear();
                options.preset.clear();
                if (std::find(known.begin(), known.end(), typed.back()) != known.end()) {
                  names.set(label, typed);
                  options.preset = typed.back();
                } else if (is_directory) {
                  options.source = typed.back();
                } else {
                  known.emplace_back("a Hugging Face directory");
                  app::refuse("{}", recipe::unknown_name(label, typed.back(), known));
                }
              },
          .get =
              [&options, names] {
                if (!options.source.empty()) return nlohmann::json(options.source.native());
                return options.config_of.empty() || !options.preset.empty() ? names.get() : nlohmann::json();
              }};
}

}  // namespace

std::vector<Option> train_table(app::TrainOptions& options, std::filesystem::path& config) {
  constexpr Range<int64_t> kFromZero{.from = 0}, kFromOne{.from = 1};
  constexpr int64_t kYear = 365 * 24 * 60 * 60;  // clocks count nanoseconds in 64 bits
  constexpr Range<double> kPositive{.from = kAboveZero}, kNotNegative{.from = 0};
  // Ranks have the same value of each, unless its row says otherwise.
  return {
      {"data", "PATH...", existing_paths(options.data), "files, and directories searched for text files",
       Need::kRequired, AcrossRanks::kSameContents},
      {"out", "DIR", path(options.out), "where checkpoints go", Need::kRequired},
      {"steps", "N", integer(options.steps, kFromOne), "optimizer steps"},
      {"model", "NAME|DIR", first_model(options),
       "sizes of a new model of bytes: tiny, small or gpt2; or a Hugging Face directory, whose model is trained on"},
      {"config-of", "DIR", path(options.config_of, PathMust::kExist),
       "a Hugging Face directory, for a new model with its config and tokenizer, instead of --model"},
      {"layers", "N", integer(options.layers, kLayers), "instead of the model's"},
      {"dim", "N", integer(options.dim, kSizes), "instead of the model's"},
      {"heads", "N", integer(options.heads, kSizes), "instead of the model's; divides dim"},
      {"context", "N", integer(options.context, kSizes),
       "tokens that the model sees at a time, instead of the model's (512 of a Hugging Face directory)"},
      {"batch", "N", integer(options.batch, kSizes), "sequences in a forward pass"},
      {"accumulate", "N", integer(options.accumulate, kSizes), "forward passes in a step"},
      {"lr", "X", number(options.lr, kPositive), "learning rate at its peak"},
      {"schedule", "NAME", choice(options.schedule, app::kSchedules),
       "cosine or linear: how the rate falls to a tenth"},
      {"warmup", "N", integer(options.warmup, kFromZero), "steps from zero to the peak"},
      {"weight-decay", "X", number(options.weight_decay, kNotNegative), "of matrices and embeddings"},
      {"clip", "X", number(options.clip, kPositive), "largest global norm of the gradients"},
      {"high-precision-tail", "X", number(options.high_precision_tail, {.from = 0, .to = 1}),
       "share of the last blocks whose products have no codes, rounded up (0.15 under nvfp4, nvfp4-4over6 and ms-eden, "
       "else 0)"},
      {"finish-in", "NAME SHARE", finish_in(options.finish_in),
       "another recipe for the last share of the steps: bf16 0.05"},
      {"loss-scale", "X", loss_scale(options.loss_scale),
       "dynamic, auto, none, a number, or recipe: dynamic under fp16, none under the others"},
      {"loss-scale-hysteresis", "N", integer(options.loss_scale_hysteresis, kFromOne),
       "overflows until a dynamic or auto scale backs off"},
      {"optimizer-state", "KIND", choice(options.optimizer_state, optim::kOptimizerStates),
       "AdamW's moments in fp32, bf16 or 8bit: 8, 4 or 2.1 bytes a weight"},
      {"masters", "KIND", choice(options.masters, optim::kMasters),
       "fp32 weights; split: bf16 weights, each with a correction of 8 bits; none: bf16 weights, rounded stochastically"},
      {"seed", "N", integer(options.seed, kFromZero), "of the weights and of the order of the data"},
      {"threads", "N", integer(options.threads, {.from = 0, .to = 4096}), "0: one a core", Need::kOptional,
       AcrossRanks::kOwn},
      {"shard", "HOW", choice(options.shard, app::kSharings),
       "what the processes that torchrun, mpirun or srun started share: ddp, each batch; zero1, and the optimizer's "
       "states; zero2, and the gradients; fsdp, and the parameters; none"},
      {"compress", "HOW", choice(options.compress, shard::kCompressions),
       "how gradients travel under --shard ddp, zero1 or zero2: fp16, bf16 or fp8, what rounding leaves out joins the next "
       "step's; none: fp32"},
      {"offload", "WHERE", choice(options.offload, app::kOffloads),
       "where a process's part under --shard fsdp waits: disk, files in DIR; cpu, where it is; none"},
      {"checkpoint-activations", "", toggle(options.checkpoint_activations),
       "keep of each block its input alone, and compute it again for backward"},
      {"deadline", "SECONDS", integer(options.deadline, {.from = 1, .to = kYear}),
       "that a process waits for the others"},
      {"eval-every", "N", integer(options.eval_every, kFromZero), "steps between validations; 0: at the end only"},
      {"eval-windows", "N", integer(options.eval_windows, kFromOne), "held-out sequences in a validation"},
      {"save-every", "N", integer(options.save_every, kFromZero), "steps between checkpoints; 0: at the end only"},
      {"keep", "N", integer(options.keep, kFromOne), "checkpoints that are kept"},
      {"async-save", "", toggle(options.async_save), "train on while a checkpoint is written, from a copy in memory"},
      {"log-every", "N", integer(options.log_every, kFromOne), "steps between lines where there is no terminal",
       Need::kOptional, AcrossRanks::kOwn},
      {"log-scales", "N", integer(options.log_scales, kFromZero),
       "steps between records of each operand's amax and scale in the log; 0: none"},
      {"resume", "", toggle(options.resume), "go on after the last good checkpoint in DIR"},
      {"json", "FILE", report_path(options.json),
       "results for machines, to a new file or over an earlier report; train: DIR/train.jsonl if not given",
       Need::kOptional, AcrossRanks::kOwn},
      {kConfigOption, "FILE", path(config, PathMust::kExist), "options as a JSON object; the command line wins",
       Need::kOptional, AcrossRanks::kOwn},
  };
}

}  // namespace plimsoll::cli
