// `plimsoll audit` as functions: the formats in which a model runs, and where two audits differ.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/recipe/named.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {

enum class AuditAs : uint8_t {
  kTrain,     // the passes of a training step
  kGenerate,  // a prompt and one token after it
};
inline constexpr std::array<recipe::Named<AuditAs>, 2> kAuditedAs = {
    {{"train", AuditAs::kTrain}, {"generate", AuditAs::kGenerate}}};

struct AuditOptions {
  TextModelOptions model;                   // a Hugging Face directory trains in FP32 weights
  std::optional<ChosenRecipe> recipe = {};  // none: the run's; of a directory fp32, or to generate the weights' dtype
  AuditAs as = AuditAs::kTrain;
  int64_t tokens = 64;  // of the step or of the prompt, drawn at random
};

// Runs the model under recording. Throws UsageError, Error or io::Error.
void audit_model(const AuditOptions& options, watch::Audit& audit);

enum class AuditedRows : uint8_t {
  kAll,
  kForwardProducts,  // what a trainer and a server have in common: what products read, and by which kernel
};

// One line for each member in which a row of one file differs from that of the same run in the other
// (watch::write_json_lines), calls, operations and shares aside: those follow from how long the programs ran. Throws
// Error or io::Error.
std::vector<std::string> audit_differences(const std::filesystem::path& first, const std::filesystem::path& second,
                                           AuditedRows which);

}  // namespace plimsoll::app
