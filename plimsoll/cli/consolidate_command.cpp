#include <fmt/format.h>

#include <memory>

#include "plimsoll/app/checkpoint/consolidate.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"

namespace plimsoll::cli {

Command consolidate_command() {
  const auto options = std::make_shared<app::ConsolidateOptions>();
  options->warn = print_warning;
  return {.name = "consolidate",
          .summary = "Write a checkpoint that several processes saved as one safetensors file",
          .options = {{"checkpoint", "DIR", path(options->checkpoint, PathMust::kExist),
                       "of a step, or a run, whose newest good one is taken", Need::kPositional},
                      {"out", "FILE", path(options->out), "the new safetensors file", Need::kRequired},
                      {"section", "NAME", text(options->section), "model, optimizer or random"}},
          .run = [options](const nlohmann::json&) {
            const app::Consolidated done = app::consolidate(*options);
            fmt::print("{}, written by {}: {}, {:.1f} MB, are in {}\n", done.checkpoint.native(),
                       counted(done.world_size, "process", "processes"), counted(done.tensors, "tensor"),
                       static_cast<double>(done.bytes) / 1e6, options->out.native());
            return kExitOk;
          }};
}

}  // namespace plimsoll::cli
