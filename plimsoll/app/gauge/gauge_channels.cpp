#include "plimsoll/app/gauge/gauge_channels.h"

#include <utility>

#include "plimsoll/gauge/channel_balance.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

// Largest values for any input.
models::Amaxes bounds_of(const models::LanguageModel& model) {
  const watch::AuditedRun run("bounds");
  return model.worst_case_amaxes();
}

}  // namespace

gauge::WeightRanges weight_ranges_of(const models::LanguageModel& model, const models::Freedoms& freedoms) {
  gauge::WeightRanges ranges;
  const auto weights = model.weights_with_freedom();
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    const auto& count = tensor.one_plus ? gauge::count_exponents_of_one_plus : gauge::count_exponents;
    ranges.emplace(tensor.name, count(weights.at(tensor.name)));
  }
  return ranges;
}

GaugedRanges ranges_of(const models::LanguageModel& model, const models::Freedoms& freedoms,
                       const gauge::Calibration* calibration) {
  models::Amaxes values = calibration != nullptr ? calibration->amaxes() : bounds_of(model);
  return {.weights = weight_ranges_of(model, freedoms), .values = std::move(values)};
}

models::Exponents balance_channels(std::shared_ptr<models::LanguageModel>& model, GaugedRanges& ranges,
                                   const ChannelBalance& balance) {
  const models::Freedoms& freedoms = balance.freedoms;
  models::Exponents channels = gauge::balanced_channels(freedoms, model->weights_with_freedom());
  if (channels.channels.empty()) return channels;
  const auto cost = [&](const GaugedRanges& of) {
    const gauge::RangeCosts costs(freedoms, of.weights, of.values, balance.headroom_bits);
    return costs.of(costs.best());
  };
  model = model->take_multiplied(channels);
  gauge::Calibration calibration(*model);
  if (balance.inputs != nullptr) {
    const watch::AuditedRun run("fp32 balanced");
    for (const at::Tensor& window : balance.inputs->windows) {
      balance.inputs->check();
      calibration.observe(window);
    }
  }
  GaugedRanges balanced = ranges_of(*model, freedoms, balance.inputs != nullptr ? &calibration : nullptr);
  if (cost(balanced) < cost(ranges)) {
    ranges = std::move(balanced);
    return channels;
  }
  model = model->take_multiplied(gauge::inverse(channels));
  channels.channels.clear();
  return channels;
}

}  // namespace plimsoll::app
