#include "plimsoll/app/gauge_language_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge_certificate.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/relative_error.h"
#include "plimsoll/app/t5_inputs.h"
#include "plimsoll/app/trained_model.h"
#include "plimsoll/gauge/calibration.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/line_reader.h"
#include "plimsoll/models/tensors.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/tokenize/byte_tokenizer.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

constexpr const char* kRecipe = "fp16";  // of what is written

// The inputs in windows of the model's context, int64 [1, tokens].
std::vector<at::Tensor> read_windows(const GaugeOptions& options, int64_t context) {
  std::vector<at::Tensor> texts;
  if (options.calibrate.empty()) {
    at::manual_seed(0);
    texts.push_back(at::randint(tokenize::kByteVocabulary, {context}, at::kLong));
  } else if (options.calibrate.extension() == ".jsonl") {
    T5Texts ids(options.model, tokenize::kByteVocabulary);
    for (const T5Example& example : ids.read_examples(options.calibrate)) texts.push_back(at::tensor(example.input));
  } else {
    io::LineReader file(options.calibrate);
    for (std::string line; file.next(line);) {
      if (!line.empty()) texts.push_back(at::tensor(tokenize::ByteTokenizer().encode(line)));
    }
    if (texts.empty()) fail("{}: expected at least one line, got none", options.calibrate.native());
  }
  std::vector<at::Tensor> windows;
  for (const at::Tensor& text : texts) {
    for (const at::Tensor& window : text.split(context)) windows.push_back(window.unsqueeze(0));
  }
  return windows;
}

json verify(models::LanguageModel& model, const std::vector<at::Tensor>& windows,
            const std::vector<at::Tensor>& logits) {
  bool identical = true, finite = true;
  RelativeError error;
  for (size_t i = 0; i < windows.size(); ++i) {
    identical = identical && at::equal(model.logits(windows[i]), logits[i]);
    const amp::Fp8Autocast scope({.recipe = recipe::by_name(kRecipe)});
    const at::Tensor narrow = model.logits(windows[i]);
    finite = finite && narrow.isfinite().all().item<bool>();
    error.add(narrow, logits[i]);
  }
  json fp16 = {{"finite", finite}};
  if (finite) fp16["logits_relative_l2"] = error.value();
  return {{"fp32", {{"bit_identical", identical}, {"outputs", {"logits"}}}}, {"fp16", std::move(fp16)}};
}

}  // namespace

json gauge_language_model(const GaugeOptions& options) {
  const at::NoGradGuard no_grad;
  NewDirectory directory(options.out);
  const TrainedModel source = load_trained_model(options.model);
  const std::vector<at::Tensor> windows = read_windows(options, source.model->context());

  gauge::Calibration calibration(*source.model);
  std::vector<at::Tensor> logits;
  int64_t tokens = 0;
  for (const at::Tensor& window : windows) {
    logits.push_back(calibration.observe(window));
    tokens += window.numel();
  }
  const models::Amaxes values = options.calibrate.empty() ? source.model->worst_case_amaxes() : calibration.amaxes();
  gauge::WeightRanges weights;
  for (const auto& [name, weight] : source.model->weights_with_freedom()) {
    weights.emplace(name, gauge::count_exponents(weight));
  }
  const models::Freedoms freedoms = source.model->freedoms();
  const models::Exponents exponents = gauge::search(freedoms, weights, values, static_cast<int>(options.headroom_bits));

  const auto gauged = source.model->multiplied(exponents);
  io::save_checkpoint(directory.partial(), {.step = source.step,
                                            .sections = {{"model", models::tensors_of(gauged->module())}},
                                            .state = {{"shape", gauged->shape()}, {"recipe", kRecipe}}});
  json certificate = describe({.freedoms = freedoms,
                               .exponents = exponents,
                               .weights = weights,
                               .values = values,
                               .headroom_bits = options.headroom_bits});
  certificate.update(verify(*load_trained_model(directory.partial()).model, windows, logits));
  if (!certificate["fp32"]["bit_identical"].get<bool>()) refuse_other_bits(options.model);
  certificate["fp32"]["inputs"] = verified_inputs(options.calibrate, source.model->context());
  certificate["calibration"] = calibration_json(options.calibrate, static_cast<int64_t>(windows.size()), tokens);
  certificate["norm_epsilon"] = gauged->norm_epsilon();
  io::write_file(directory.partial() / kGaugeCertificate, certificate.dump(2) + "\n");
  directory.commit();
  return certificate;
}

}  // namespace plimsoll::app
