#include "plimsoll/gauge/channel_balance.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace plimsoll::gauge {
namespace {

// FP16 holds numbers 2^-20 of its largest without loss, far more than the spread of a weight's elements and four bits.
constexpr int kLeastBits = 4;

struct ChannelAmaxes {
  std::vector<float> growing, shrinking;  // 0: no weight that is not 0
};

void raise(std::vector<float>& amaxes, const at::Tensor& weight, const models::GaugedTensor& tensor) {
  const std::vector<int64_t>& of = tensor.channels->channel;
  const at::Tensor magnitudes = (tensor.one_plus ? weight + 1 : weight).abs();
  const at::Tensor lines =
      (weight.dim() == 2 ? magnitudes.amax(1 - tensor.channels->dim) : magnitudes).to(at::kFloat).contiguous();
  for (size_t i = 0; i < of.size(); ++i) {
    const auto channel = static_cast<size_t>(of[i]);
    if (channel >= amaxes.size()) amaxes.resize(channel + 1);
    amaxes[channel] = std::max(amaxes[channel], lines.const_data_ptr<float>()[i]);
  }
}

bool holds(float weight, int exponent) {
  const double want = std::ldexp(1 + double{weight}, exponent) - 1;
  return double{static_cast<float>(want)} == want;
}

// Takes bits from the exponents, and all if few are left, until FP32 holds this tensor's w of 1 + w.
void keep_exact(std::vector<int>& exponents, const at::Tensor& weight, const models::GaugedTensor& tensor) {
  const at::Tensor values = weight.to(at::kFloat).contiguous();
  for (size_t i = 0; i < tensor.channels->channel.size(); ++i) {
    int& exponent = exponents[static_cast<size_t>(tensor.channels->channel[i])];
    while (exponent != 0 && !holds(values.const_data_ptr<float>()[i], tensor.sign * exponent)) {
      exponent += exponent > 0 ? -1 : 1;
      if (std::abs(exponent) < kLeastBits) exponent = 0;
    }
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median of the logarithms of those that are not 0.
double usual_bits(const std::vector<float>& amaxes) {
  std::vector<double> bits;
  for (const float amax : amaxes) {
    if (amax > 0) bits.push_back(std::log2(double{amax}));
  }
  return median(std::move(bits));
}

std::vector<int> exponents_of(ChannelAmaxes amaxes) {
  amaxes.shrinking.resize(amaxes.growing.size());
  const auto ratio = [&](size_t i) { return std::log2(double{amaxes.growing[i]} / amaxes.shrinking[i]); };
  std::vector<double> ratios;
  for (size_t i = 0; i < amaxes.growing.size(); ++i) {
    if (std::isfinite(ratio(i))) ratios.push_back(ratio(i));
  }
  std::vector<int> exponents(amaxes.growing.size());
  if (ratios.empty()) return exponents;
  const double usual = median(ratios), usual_growing = usual_bits(amaxes.growing);
  for (size_t i = 0; i < exponents.size(); ++i) {
    double bits = (ratio(i) - usual) / 2;
    if (amaxes.shrinking[i] == 0) bits = std::log2(amaxes.growing[i]) - usual_growing;
    if (!std::isfinite(bits)) continue;
    const int exponent = -static_cast<int>(std::lround(bits));
    if (std::abs(exponent) >= kLeastBits) exponents[i] = exponent;
  }
  return exponents;
}

}  // namespace

models::Exponents balanced_channels(const models::Freedoms& freedoms,
                                    const std::map<std::string, at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  std::map<size_t, ChannelAmaxes> pairs;
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    if (!tensor.pair || !tensor.channels) continue;
    ChannelAmaxes& amaxes = pairs[*tensor.pair];
    raise(tensor.sign > 0 ? amaxes.growing : amaxes.shrinking, weights.at(tensor.name), tensor);
  }
  models::Exponents result{.pairs = std::vector<int>(freedoms.pairs.size())};
  for (auto& [pair, amaxes] : pairs) result.channels.emplace(pair, exponents_of(std::move(amaxes)));
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    if (!tensor.pair || !tensor.channels || !tensor.one_plus) continue;
    keep_exact(result.channels.at(*tensor.pair), weights.at(tensor.name), tensor);
  }
  std::erase_if(result.channels, [](const auto& pair) {
    return std::all_of(pair.second.begin(), pair.second.end(), [](int exponent) { return exponent == 0; });
  });
  return result;
}

models::Exponents inverse(models::Exponents exponents) {
  exponents.residual = -exponents.residual;
  for (int& exponent : exponents.pairs) exponent = -exponent;
  for (auto& [pair, channels] : exponents.channels) {
    for (int& exponent : channels) exponent = -exponent;
  }
  return exponents;
}

}  // namespace plimsoll::gauge
