#include <fmt/format.h>

#include <memory>

#include "plimsoll/app/checkpoint/merge_adapter.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/report_errors.h"

namespace plimsoll::cli {

Command merge_command() {
  const auto options = std::make_shared<app::MergeOptions>();
  options->warn = print_warning;
  return {.name = "merge",
          .summary = "Write a model with a LoRA adapter in its weights as a Hugging Face directory",
          .options = {{"model", "DIR", path(options->model, PathMust::kExist),
                       "the base: a Hugging Face directory, a run that began with one, or a checkpoint of it",
                       Need::kRequired},
                      {"adapter", "DIR", path(options->adapter, PathMust::kExist),
                       "adapter_config.json and adapter_model.safetensors, as PEFT writes them", Need::kRequired},
                      {"out", "DIR", path(options->out), "the new directory", Need::kRequired}},
          .run = [options](const nlohmann::json&) {
            app::merge_adapter(*options);
            fmt::print("{}\n", options->out.native());
            return kExitOk;
          }};
}

}  // namespace plimsoll::cli
