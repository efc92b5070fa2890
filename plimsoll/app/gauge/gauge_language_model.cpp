#include "plimsoll/app/gauge/gauge_language_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge_certificate.h"
#include "plimsoll/app/gauge/gauge_channels.h"
#include "plimsoll/app/gauge/gauge_gradients.h"
#include "plimsoll/app/gauge/gauge_measurement.h"
#include "plimsoll/app/gauge/gauge_search.h"
#include "plimsoll/app/gauge/gauge_texts.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/text/mapped_logits.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/gauge/calibration.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/families.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/tensors.h"
#include "plimsoll/ops/linear/no_kept_weights.h"
#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

constexpr const char* kRecipe = "fp16";  // of what is written

constexpr int64_t kMostMeasuredTokens = 4096;  // of the inputs that are read for each exponents

constexpr int64_t kShortestTrained = 2;  // tokens of a text, of which all but the first are targets

constexpr const char* kSourceRun = "fp32";  // in an audit

constexpr int64_t kMostWindow = 512;  // tokens of a text that a directory's model reads at once

// A run of a model with bytes stays a run and reads its context's windows. A Hugging Face model, or a run of one, becomes a
// directory and reads the tokens of its tokenizer.
struct GaugeSource {
  explicit GaugeSource(const GaugeOptions& options) {
    const bool has_run = is_run(options.model);
    TextModel loaded = load_model({.path = options.model,
                                   .dtype = has_run ? models::WeightDtype::kAsStored : models::WeightDtype::kFp32,
                                   .warn = options.warn});
    directory = std::move(loaded.directory);
    step = loaded.step;
    high_precision_tail = loaded.high_precision_tail;
    model = std::move(loaded.model);
    vocabulary = vocabulary_of(*model);
    becomes_directory = !has_run || models::family_of(model->shape()).shape_of == nullptr;
    window = becomes_directory ? std::min(model->context(), kMostWindow) : model->context();
  }

  std::filesystem::path directory;  // of the tokenizer and config.json
  bool becomes_directory = false;
  int64_t step = 0;                // of a run
  double high_precision_tail = 0;  // of a run, which it has under recipes with codes
  std::shared_ptr<models::LanguageModel> model;
  int64_t vocabulary = 0, window = 0;
};

// The inputs in windows, int64 [1, tokens].
std::vector<at::Tensor> read_windows(const GaugeOptions& options, const GaugeSource& source) {
  std::vector<at::Tensor> texts;
  if (options.calibrate.empty()) {
    at::manual_seed(0);
    texts.push_back(at::randint(source.vocabulary, {source.window}, at::kLong));
  } else {
    const GaugeTexts read{.file = options.calibrate, .directory = source.directory, .vocabulary = source.vocabulary};
    for (const std::vector<int64_t>& ids : read_gauge_texts(read)) texts.push_back(at::tensor(ids));
  }
  std::vector<at::Tensor> windows;
  for (const at::Tensor& text : texts) {
    for (const at::Tensor& window : text.split(source.window)) windows.push_back(window.unsqueeze(0));
  }
  return windows;
}

// Writes the model as a directory, or as a run whose one checkpoint has the recipe fp16 and the source's tail.
void write_model(models::LanguageModel& model, const GaugeSource& source, const std::filesystem::path& directory) {
  if (source.becomes_directory) {
    models::save(model, directory, {.source = source.directory});
    return;
  }
  io::save_checkpoint(
      directory,
      {.step = source.step,
       .sections = {{"model", models::tensors_of(model.module())}},
       .state = {{"shape", model.shape()}, {"recipe", kRecipe}, {"high_precision_tail", source.high_precision_tail}}});
}

std::shared_ptr<models::LanguageModel> written(const std::filesystem::path& directory, const GaugeSource& source,
                                               models::WeightDtype dtype) {
  release_cached_memory();  // of the model before
  if (!source.becomes_directory) return load_trained_model(directory).model;
  return load_model({.path = directory, .dtype = dtype}).model;
}

// The inputs with the logits of the model that is observed, in a file in `folder`.
GaugeInputs observed(GaugeInputs inputs, gauge::Calibration& calibration, int64_t vocabulary,
                     const std::filesystem::path& folder) {
  const watch::AuditedRun run(kSourceRun);
  const at::Tensor memory = mapped_logits(folder / "reference_logits", inputs.tokens(), vocabulary);
  int64_t first = 0;
  for (const at::Tensor& window : inputs.windows) {
    inputs.check();
    inputs.logits.push_back(memory.narrow(0, first, window.numel()).unsqueeze(0));
    inputs.logits.back().copy_(calibration.observe(window));
    first += window.numel();
    io::check_mapped_files();
  }
  return inputs;
}

// Logits of what was written, in FP32 and in FP16, which of a directory is the dtype of its weights. One model at a time.
json verify(const std::filesystem::path& directory, const GaugeSource& source, const GaugeInputs& inputs) {
  auto model = written(directory, source, models::WeightDtype::kFp32);
  bool identical = true;
  {
    const watch::AuditedRun run("fp32 gauged");
    for (size_t i = 0; i < inputs.windows.size(); ++i) {
      inputs.check();
      identical = identical && at::equal(model->logits(inputs.windows[i]), inputs.logits[i]);
    }
  }
  if (source.becomes_directory) {
    model = nullptr;
    model = written(directory, source, models::WeightDtype::kFp16);
  }
  const watch::AuditedRun run("fp16 gauged");
  const double error = fp16_error(*model, inputs);
  json fp16 = {{"finite", std::isfinite(error)}};
  if (std::isfinite(error)) fp16["logits_relative_l2"] = error;
  return {{"fp32", {{"bit_identical", identical}, {"outputs", {"logits"}}}}, {"fp16", std::move(fp16)}};
}

// Copies of the weights that act as 1 + w, by name.
std::map<std::string, at::Tensor> one_plus_weights(const models::LanguageModel& model,
                                                   const models::Freedoms& freedoms) {
  const auto weights = model.weights_with_freedom();
  std::map<std::string, at::Tensor> result;
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    if (tensor.one_plus) result.emplace(tensor.name, weights.at(tensor.name).clone());
  }
  return result;
}

// Weights whose 1 + w is not the source's times a power of two, since FP32 does not hold that w: by name their number, and
// the largest relative error of 1 + w.
json rounded_weights(const std::map<std::string, at::Tensor>& before, const std::map<std::string, at::Tensor>& after,
                     const models::Freedoms& freedoms, const models::Exponents& exponents) {
  json result = json::object();
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    if (!tensor.one_plus) continue;
    const at::Tensor want = (before.at(tensor.name) + 1) * std::ldexp(1.0, exponent_of(tensor, exponents));
    const at::Tensor error = (after.at(tensor.name) + 1 - want).abs();
    const int64_t count = error.count_nonzero().item<int64_t>();
    if (count == 0) continue;
    result[tensor.name] = {{"elements", count},
                           {"relative_error", (error / want.abs()).nan_to_num(0).max().item<float>()}};
  }
  return result;
}

void observe_gradients(gauge::Calibration& calibration, const GaugeInputs& inputs, const GaugeOptions& options) {
  const watch::AuditedRun run(kSourceRun);
  bool has_target = false;
  for (const at::Tensor& window : inputs.windows) {
    if (window.size(1) < kShortestTrained) continue;
    inputs.check();
    calibration.observe_gradients(window, {.tokens = options.step_targets});
    has_target = true;
  }
  if (!has_target) fail("{}: expected a text of two tokens or more, got none", options.calibrate.native());
}

// The largest loss scale under which each gradient keeps its headroom.
double largest_loss_scale(const models::Freedoms& freedoms, const models::Exponents& exponents,
                          const models::Amaxes& gradients, int64_t headroom_bits) {
  double least = std::numeric_limits<double>::infinity();
  for (const models::GaugedTensor& value : freedoms.values) {
    const auto found = gradients.find(value.name);
    if (found == gradients.end()) continue;
    least = std::min(least, gauge::fp16_headroom(found->second, -exponent_of(value, exponents)));
  }
  return std::exp2(least - static_cast<double>(headroom_bits));
}

}  // namespace

json gauge_language_model(const GaugeOptions& options) {
  const at::NoGradGuard no_grad;
  const ops::NoKeptWeights no_kept_weights;
  NewDirectory directory(options.out);
  GaugeSource source(options);
  const models::Freedoms freedoms = source.model->freedoms();
  const bool has_inputs = !options.calibrate.empty();
  GaugeInputs inputs;
  GaugedRanges as_read;
  {
    gauge::Calibration calibration(*source.model);
    std::vector<at::Tensor> windows = read_windows(options, source);
    options.progress(has_inputs ? "values in FP32" : "weights");
    inputs = observed({.windows = std::move(windows), .logits = {}, .check = options.check}, calibration,
                      source.vocabulary, directory.partial());
    as_read = ranges_of(*source.model, freedoms, has_inputs ? &calibration : nullptr);
  }
  GaugedRanges ranges = as_read;
  const models::Exponents channels = balance_channels(source.model, ranges,
                                                      {.freedoms = freedoms,
                                                       .inputs = has_inputs ? &inputs : nullptr,
                                                       .headroom_bits = static_cast<int>(options.headroom_bits)});
  models::Amaxes gradients;
  if (options.train) {
    options.progress("gradients in FP32");
    gauge::Calibration calibration(*source.model);
    observe_gradients(calibration, inputs, options);
    gradients = calibration.gradient_amaxes(freedoms);
  }
  const gauge::RangeCosts costs(freedoms, ranges.weights, ranges.values, static_cast<int>(options.headroom_bits),
                                gradients);
  models::Exponents exponents = costs.best();
  const GaugeInputs some = inputs.spread(kMostMeasuredTokens, options.train ? kShortestTrained : 0);
  GradientError gradient_error(*source.model, some, options.step_targets);
  json search = {{"measurements", 0}};
  if (has_inputs && options.measurements > 0) {
    std::function<double(const models::Exponents&)> counted;
    options.progress(
        io::compose("FP16's error of up to {} exponents on {} tokens each", options.measurements, some.tokens()));
    if (options.train) counted = [&](const models::Exponents& each) { return gradient_error(each, 1); };
    const gauge::MeasuredExponents found = search_fp16({.model = *source.model,
                                                        .narrow_weights = source.becomes_directory,
                                                        .inputs = some,
                                                        .freedoms = freedoms,
                                                        .costs = costs,
                                                        .gradient_error = std::move(counted),
                                                        .most_measurements = options.measurements});
    exponents = found.exponents;
    search = search_json(
        found, options.measurements,
        {.inputs = static_cast<int64_t>(some.windows.size()), .tokens = some.tokens(), .gradients = options.train});
  }

  models::Exponents all = exponents;
  all.channels = channels.channels;
  json certificate = describe({.freedoms = freedoms,
                               .exponents = all,
                               .source = as_read,
                               .balanced = ranges,
                               .headroom_bits = options.headroom_bits});
  certificate["search"] = std::move(search);
  if (options.train) {
    options.progress("gradients in FP16 for the loss scale");
    const watch::AuditedRun run("loss scale");
    const double most = largest_loss_scale(freedoms, exponents, gradients, options.headroom_bits);
    const gauge::LossScaleChoice choice =
        gauge::choose_loss_scale([&](double loss_scale) { return gradient_error(exponents, loss_scale); }, most);
    certificate["train"] = train_json({.choice = choice, .most = most, .targets_a_step = options.step_targets},
                                      freedoms, exponents, gradients);
  }
  json rounded;
  {
    const auto before = one_plus_weights(*source.model, freedoms);
    const auto gauged = source.model->take_multiplied(exponents);
    write_model(*gauged, source, directory.partial());
    certificate["norm_epsilon"] = gauged->norm_epsilon();
    rounded = rounded_weights(before, one_plus_weights(*gauged, freedoms), freedoms, exponents);
  }
  options.progress("outputs of the new checkpoint");
  certificate.update(verify(directory.partial(), source, inputs));
  json& fp32 = certificate["fp32"];
  if (!rounded.empty()) {
    fp32["bit_identical"] = false;
    fp32["rounded_weights"] = std::move(rounded);
  } else if (!fp32["bit_identical"].get<bool>()) {
    refuse_other_bits(options.model);
  }
  fp32["inputs"] = verified_inputs(options.calibrate, source.window);
  certificate["calibration"] =
      calibration_json(options.calibrate, static_cast<int64_t>(inputs.windows.size()), inputs.tokens());
  io::write_file(directory.partial() / kGaugeCertificate, certificate.dump(2) + "\n");
  options.check();
  directory.commit();
  return certificate;
}

}  // namespace plimsoll::app
