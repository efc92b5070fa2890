#include "plimsoll/app/text/parity_text.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "plimsoll/app/error.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/text/token_comparison.h"
#include "plimsoll/app/text/token_windows.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {

using nlohmann::json;

namespace {

using Windows = std::vector<TokenWindow>;

bool same_tokens(const Windows& a, const Windows& b) {
  return std::ranges::equal(a, b, [](const TokenWindow& x, const TokenWindow& y) {
    return x.inputs.equal(y.inputs) && x.targets.equal(y.targets);
  });
}

// Logits of the two have the same meaning only where every id is the same token.
void expect_same_tokenizer(const TextModel& model, const TextModel& against) {
  const std::string name = model.directory.native(), other = against.directory.native();
  const int64_t got = vocabulary_of(*model.model), expected = vocabulary_of(*against.model);
  if (got != expected) fail("{}: expected the {} tokens of {}, got {}", name, expected, other, got);
  for (int64_t id = 0; id < expected; ++id) {
    const auto token = model.tokenizer->id_to_token(id), wanted = against.tokenizer->id_to_token(id);
    if (token == wanted) continue;
    fail("{}: expected the tokenizer of {}, got another: token {} is '{}' in place of '{}'", name, other, id,
         token.value_or(""), wanted.value_or(""));
  }
}

// Without --context the windows are as long as the model sees that sees less, which is said where it shortens them.
Windows windows_of_both(const TextModel& model, const TextModel& against, TokenWindowOptions options,
                        const models::Warn& warn) {
  expect_same_tokenizer(model, against);
  const int64_t sees = model.model->context(), other_sees = against.model->context();
  const TextModel& shorter = sees < other_sees ? model : against;
  if (!options.context) {
    options.context = usual_window(shorter);
    if (warn && *options.context < usual_window(sees < other_sees ? against : model)) {
      warn(io::compose("parity: the text is read in windows of {} tokens, as many as {} sees", *options.context,
                       shorter.directory.native()));
    }
  }
  const Windows own = read_token_windows(model, options);
  Windows windows = read_token_windows(against, options);
  if (same_tokens(windows, own)) return windows;
  fail("{}: expected the tokenizer of {}, got another, which reads {} as other tokens", model.directory.native(),
       against.directory.native(), options.data.native());
}

// One model on the windows of a text.
class Judged {
 public:
  Judged(TextModel model, std::string name) : model_(std::move(model)), name_(std::move(name)) {}

  const TextModel& model() const { return model_; }
  const std::string& name() const { return name_; }

  at::Tensor logits(const TokenWindow& window) {
    const watch::AuditedRun run(name_);
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor result = logits_of(model_, window);
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  }
  void compare(const at::Tensor& logits, const at::Tensor& reference, const TokenWindow& window) {
    const watch::AuditedRun run(name_);
    sums_.add(logits, reference, window.targets);
    tokens_ += window.targets.numel();
  }

  json result() const {
    json entry = sums_.result();
    entry["tokens_per_s"] = static_cast<double>(tokens_) / seconds_;
    entry["bytes_per_weight"] = bytes_per_weight(*model_.model);
    return entry;
  }

 private:
  TextModel model_;
  std::string name_;
  TokenComparison sums_;
  double seconds_ = 0;
  int64_t tokens_ = 0;
};

json of_reference(const Judged& reference) {
  const json all = reference.result();
  json result;
  for (const char* member : {"finite", "perplexity", "bytes_per_weight", "tokens_per_s"})
    result[member] = all.at(member);
  return result;
}

}  // namespace

json text_parity(const TextParityOptions& options) {
  const at::NoGradGuard no_grad;
  const bool has_other = !options.against.empty();
  std::optional<DirectoryWithOutlier> grafted;
  if (options.outlier) grafted.emplace(options.model, *options.outlier);
  const std::filesystem::path path = grafted ? grafted->path() : options.model;
  const auto load = [&](const std::filesystem::path& directory, models::WeightDtype dtype) {
    return load_text_model(
        {.path = directory, .dtype = dtype, .coded = models::CodedWeights::kHeld, .warn = options.warn});
  };
  Judged exact(load(has_other ? options.against : path, models::WeightDtype::kFp32), "reference");
  const TokenWindowOptions text = {.data = options.data, .context = options.context, .tokens = options.tokens};
  Windows windows;
  if (!has_other) windows = read_token_windows(exact.model(), text);
  std::vector<Judged> narrow;
  for (const models::WeightDtype dtype : options.dtypes) {
    options.check();
    narrow.emplace_back(load(path, dtype), std::string(recipe::name_of(models::kWeightDtypes, dtype)));
    if (windows.empty()) windows = windows_of_both(narrow.back().model(), exact.model(), text, options.warn);
  }
  int64_t tokens = 0;
  for (const TokenWindow& window : windows) {
    options.check();
    tokens += window.targets.numel();
    const at::Tensor reference = exact.logits(window);
    if (has_other) exact.compare(reference, reference, window);
    for (Judged& each : narrow) {
      options.check();
      each.compare(each.logits(window), reference, window);
    }
    io::check_mapped_files();
  }
  json result = {{"tokens", tokens}, {"dtypes", json::object()}};
  for (const Judged& each : narrow) result["dtypes"][each.name()] = each.result();
  if (!has_other) return result;
  result["model"] = options.model.native();
  result["against"] = options.against.native();
  result["reference"] = of_reference(exact);
  return result;
}

}  // namespace plimsoll::app
