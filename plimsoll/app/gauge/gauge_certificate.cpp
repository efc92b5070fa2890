#include "plimsoll/app/gauge/gauge_certificate.h"

#include <algorithm>
#include <cmath>

#include "plimsoll/app/error.h"
#include "plimsoll/app/finite_json.h"
#include "plimsoll/io/sha256.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

json describe(const models::GaugedTensor& tensor, float amax, int exponent, float before) {
  return {{"name", tensor.name},
          {"exponent", exponent},
          {"amax", std::ldexp(amax, exponent)},
          {"headroom_bits", finite_or_null(gauge::fp16_headroom(amax, exponent))},
          {"headroom_bits_before", finite_or_null(gauge::fp16_headroom(before))}};
}

json channels_json(const models::Freedoms& freedoms, const models::Exponents& exponents) {
  json pairs = json::object();
  for (const auto& [pair, channels] : exponents.channels) {
    for (size_t i = 0; i < channels.size(); ++i) {
      if (channels[i] != 0) pairs[freedoms.pairs[pair]][std::to_string(i)] = channels[i];
    }
  }
  return pairs;
}

}  // namespace

json describe(const GaugeFindings& findings) {
  json weights = json::array(), values = json::array(), below = json::array(), pairs = json::object();
  const auto note = [&](const models::GaugedTensor& tensor, float amax, int exponent, int64_t headroom_bits) {
    if (gauge::fp16_headroom(amax, exponent) < static_cast<double>(headroom_bits)) below.push_back(tensor.name);
  };
  for (const models::GaugedTensor& tensor : findings.freedoms.weights) {
    const gauge::ExponentCounts& counts = findings.balanced.weights.at(tensor.name);
    const int exponent = exponent_of(tensor, findings.exponents);
    json entry = describe(tensor, counts.amax, exponent, findings.source.weights.at(tensor.name).amax);
    entry["lost_bits"] = gauge::lost_bits(counts, exponent);
    weights.push_back(std::move(entry));
    note(tensor, counts.amax, exponent, 0);
  }
  for (const models::GaugedTensor& tensor : findings.freedoms.values) {
    const float amax = findings.balanced.values.at(tensor.name);
    const int exponent = exponent_of(tensor, findings.exponents);
    values.push_back(describe(tensor, amax, exponent, findings.source.values.at(tensor.name)));
    note(tensor, amax, exponent, findings.headroom_bits);
  }
  for (size_t i = 0; i < findings.freedoms.pairs.size(); ++i) {
    pairs[findings.freedoms.pairs[i]] = findings.exponents.pairs[i];
  }
  return {{"headroom_bits", findings.headroom_bits},
          {"exponents",
           {{"residual", findings.exponents.residual},
            {"pairs", std::move(pairs)},
            {"channels", channels_json(findings.freedoms, findings.exponents)}}},
          {"weights", std::move(weights)},
          {"values", std::move(values)},
          {"below_headroom", std::move(below)},
          {"without_freedom", findings.freedoms.without}};
}

json calibration_json(const std::filesystem::path& file, int64_t inputs, int64_t tokens) {
  if (file.empty()) return {{"kind", "worst case, from the weights"}};
  return {{"kind", "inputs"}, {"inputs", inputs}, {"input_tokens", tokens}, {"file_sha256", io::sha256_of_file(file)}};
}

json search_json(const gauge::MeasuredExponents& found, int64_t most_measurements, const SearchedInputs& inputs) {
  return {{"measurements", found.measurements},
          {"most_measurements", most_measurements},
          {"inputs", inputs.inputs},
          {"input_tokens", inputs.tokens},
          {"of", inputs.gradients ? json{"logits", "gradients"} : json{"logits"}},
          {"relative_l2", finite_or_null(found.error)},
          {"by_amaxes_relative_l2", finite_or_null(found.first_error)}};
}

json train_json(const GaugedLossScale& scale, const models::Freedoms& freedoms, const models::Exponents& exponents,
                const models::Amaxes& gradients) {
  const gauge::LossScaleChoice& choice = scale.choice;
  json trials = json::array(), described = json::array();
  for (const gauge::LossScaleTrial& trial : choice.trials) {
    trials.push_back({{"loss_scale", trial.loss_scale}, {"gradients_relative_l2", finite_or_null(trial.error)}});
  }
  for (const models::GaugedTensor& value : freedoms.values) {
    const auto found = gradients.find(value.name);
    if (found == gradients.end()) continue;
    const int exponent = -exponent_of(value, exponents);
    described.push_back({{"name", value.name},
                         {"exponent", exponent},
                         {"amax", std::ldexp(found->second, exponent)},
                         {"headroom_bits", finite_or_null(gauge::fp16_headroom(found->second, exponent))}});
  }
  return {{"recipe", "fp16"},
          {"targets_a_step", scale.targets_a_step},
          {"loss_scale", std::isfinite(choice.error) ? json(choice.loss_scale) : json()},
          {"most_loss_scale", std::max(choice.loss_scale, scale.most)},
          {"gradients_relative_l2", finite_or_null(choice.error)},
          {"loss_scales", std::move(trials)},
          {"gradients", std::move(described)}};
}

std::string verified_inputs(const std::filesystem::path& file, int64_t drawn_tokens) {
  return file.empty() ? fmt::format("one text of {} random tokens", drawn_tokens) : "those of the calibration";
}

void refuse_other_bits(const std::filesystem::path& model) {
  fail("{}: expected the source's bits in FP32, got others: it has values at the limits of FP32", model.native());
}

}  // namespace plimsoll::app
