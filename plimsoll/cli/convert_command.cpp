#include <fmt/format.h>

#include <memory>

#include "plimsoll/app/checkpoint/convert_model.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/report_errors.h"

namespace plimsoll::cli {

Command convert_command() {
  const auto options = std::make_shared<app::ConvertOptions>();
  options->warn = print_warning;
  return {.name = "convert",
          .summary = "Write a model as a Hugging Face directory, in another dtype if asked",
          .options = {{"model", "DIR", path(options->model, PathMust::kExist),
                       "a Hugging Face directory, a run that began with one, or a checkpoint of it", Need::kRequired},
                      {"out", "DIR", path(options->out), "the new directory", Need::kRequired},
                      {"dtype", "NAME", choice(options->dtype, models::kWeightDtypes),
                       "of the weights: stored, fp32, bf16 or fp16"}},
          .run = [options](const nlohmann::json&) {
            app::convert_model(*options);
            fmt::print("{}\n", options->out.native());
            return kExitOk;
          }};
}

}  // namespace plimsoll::cli
