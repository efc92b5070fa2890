// Ranges of a language model's weights and values, and exponents of single channels that make them narrower.
#pragma once

#include <memory>

#include "plimsoll/app/gauge/gauge_measurement.h"
#include "plimsoll/gauge/calibration.h"
#include "plimsoll/gauge/range_costs.h"

namespace plimsoll::app {

// Ranges of the source, or of it with the exponents of single channels.
struct GaugedRanges {
  gauge::WeightRanges weights;
  models::Amaxes values;
};

gauge::WeightRanges weight_ranges_of(const models::LanguageModel& model, const models::Freedoms& freedoms);

// values: those that the calibration has seen, or bounds for any input where it is nullptr.
GaugedRanges ranges_of(const models::LanguageModel& model, const models::Freedoms& freedoms,
                       const gauge::Calibration* calibration);

struct ChannelBalance {
  const models::Freedoms& freedoms;
  const GaugeInputs* inputs = nullptr;  // to see the values on; nullptr: bounds for any input
  int headroom_bits = 3;
};

// Exponents of single channels, under which the model and its ranges are afterwards; none, if FP16 holds no more with them.
models::Exponents balance_channels(std::shared_ptr<models::LanguageModel>& model, GaugedRanges& ranges,
                                   const ChannelBalance& balance);

}  // namespace plimsoll::app
