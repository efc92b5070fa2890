#include "plimsoll/gauge/calibration.h"

#include <ATen/core/grad_mode.h>

#include <optional>
#include <string_view>

#include "plimsoll/watch/session.h"

namespace plimsoll::gauge {
namespace {

// The watch's name of a value's gradient. A stream has none, nor has what a norm makes of it: what is added to it has.
std::optional<std::string> gradient_of(const std::string& value) {
  const size_t slash = value.find('/');
  const std::string layer = value.substr(0, slash), place = value.substr(slash + 1);
  if (place == "stream" || place == "input") return std::nullopt;
  return layer + (place == "hidden" ? "/grad_input" : "/grad_" + place);
}

bool is_gradient(const watch::Record& record) { return record.name.find("/grad_") != std::string::npos; }

}  // namespace

void backward(models::LanguageModel& model, const at::Tensor& tokens, const TrainingStep& step) {
  const at::AutoGradMode recording(true);
  const int64_t targets = tokens.size(1) - 1;
  const at::Tensor mean = model.loss(tokens.narrow(1, 0, targets), tokens.narrow(1, 1, targets));
  (mean * (static_cast<double>(targets) / static_cast<double>(step.tokens) * step.loss_scale)).backward();
}

at::Tensor Calibration::observe(const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  watch::Session session({.every_value = true});
  at::Tensor logits = model_.logits(tokens);
  raise_to(amaxes_, session.slots().records());
  return logits;
}

void Calibration::observe_gradients(const at::Tensor& tokens, const TrainingStep& step) {
  watch::Session session({.every_value = true});
  backward(model_, tokens, step);
  model_.module().zero_grad();
  std::vector<watch::Record> records = session.slots().records();
  std::erase_if(records, [](const watch::Record& record) { return !is_gradient(record); });
  raise_to(gradients_, records);
}

models::Amaxes Calibration::gradient_amaxes(const models::Freedoms& freedoms) const {
  models::Amaxes result;
  for (const models::GaugedTensor& value : freedoms.values) {
    const auto name = gradient_of(value.name);
    if (!name) continue;
    if (const auto found = gradients_.find(*name); found != gradients_.end()) result[value.name] = found->second;
  }
  return result;
}

}  // namespace plimsoll::gauge
