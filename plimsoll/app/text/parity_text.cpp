#include "plimsoll/app/text/parity_text.h"

#include <ATen/core/grad_mode.h>

#include <chrono>
#include <optional>

#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/text/token_comparison.h"
#include "plimsoll/app/text/token_windows.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {

using nlohmann::json;

json text_parity(const TextParityOptions& options) {
  const at::NoGradGuard no_grad;
  std::optional<DirectoryWithOutlier> grafted;
  if (options.outlier) grafted.emplace(options.model, *options.outlier);
  const auto load = [&](models::WeightDtype dtype) {
    return load_text_model({.path = grafted ? grafted->path() : options.model,
                            .dtype = dtype,
                            .coded = models::CodedWeights::kHeld,
                            .warn = options.warn});
  };
  const TextModel exact = load(models::WeightDtype::kFp32);
  const std::vector<TokenWindow> windows =
      read_token_windows(exact, {.data = options.data, .context = options.context, .tokens = options.tokens});
  std::vector<TextModel> narrow;
  std::vector<std::string> names;
  for (const models::WeightDtype dtype : options.dtypes) {
    narrow.push_back(load(dtype));
    names.emplace_back(recipe::name_of(models::kWeightDtypes, dtype));
  }
  std::vector<TokenComparison> sums(narrow.size());
  std::vector<double> seconds(narrow.size());
  int64_t tokens = 0;
  for (const TokenWindow& window : windows) {
    tokens += window.targets.numel();
    at::Tensor reference;
    {
      const watch::AuditedRun run("reference");
      reference = logits_of(exact, window);
    }
    for (size_t i = 0; i < narrow.size(); ++i) {
      const watch::AuditedRun run(names[i]);
      const auto start = std::chrono::steady_clock::now();
      const at::Tensor logits = logits_of(narrow[i], window);
      seconds[i] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      sums[i].add(logits, reference, window.targets);
    }
    io::check_mapped_files();
  }
  json result = {{"tokens", tokens}, {"dtypes", json::object()}};
  for (size_t i = 0; i < sums.size(); ++i) {
    json& entry = result["dtypes"][names[i]];
    entry = sums[i].result();
    entry["tokens_per_s"] = static_cast<double>(tokens) / seconds[i];
    entry["bytes_per_weight"] = bytes_per_weight(*narrow[i].model);
  }
  return result;
}

}  // namespace plimsoll::app
