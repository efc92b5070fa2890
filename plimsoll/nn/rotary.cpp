#include "plimsoll/nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <vector>

#include "plimsoll/nn/checks.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::nn {
namespace {

// FP32 counts to it.
constexpr int64_t kMostPositions = int64_t{1} << 24;

void check_options(int64_t channels, const RotaryTableOptions& options) {
  check_size("rotary", "channels", channels, 2);
  const auto check_positive = [](const char* name, double x) {
    TORCH_CHECK_VALUE(std::isfinite(x) && x > 0, "rotary: expected ", name, " that is finite and > 0, got ", x);
  };
  TORCH_CHECK_VALUE(options.share > 0 && options.share <= 1, "rotary: expected a share in (0, 1], got ", options.share);
  check_positive("theta", options.theta);
  check_positive("factor", options.factor);
  check_positive("low_freq_factor", options.low_freq_factor);
  TORCH_CHECK_VALUE(std::isfinite(options.high_freq_factor) && options.high_freq_factor > options.low_freq_factor,
                    "rotary: expected high_freq_factor beyond low_freq_factor, ", options.low_freq_factor, ", got ",
                    options.high_freq_factor);
  check_size("rotary", "original_max_position_embeddings", options.original_max_position_embeddings, 1);
}

// The operations of transformers' _compute_llama3_parameters in their order, each rounded to FP32.
at::Tensor scaled_as_llama3(const at::Tensor& inv_freq, const RotaryTableOptions& options) {
  const double context = static_cast<double>(options.original_max_position_embeddings);
  const double low = options.low_freq_factor, high = options.high_freq_factor;
  const at::Tensor wavelength = inv_freq.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor is_long = wavelength > context / low, is_short = wavelength < context / high;
  const at::Tensor longest = at::where(is_long, inv_freq / options.factor, inv_freq);
  const at::Tensor smooth = (wavelength.reciprocal() * context - low) / (high - low);
  const at::Tensor between = (1 - smooth) * longest / options.factor + smooth * longest;
  return at::where(is_long.logical_or(is_short), longest, between);
}

at::Tensor frequencies(int64_t rotated, const RotaryTableOptions& options) {
  const at::Tensor exponents = at::arange(0, rotated, 2, at::kFloat) / rotated;
  const at::Tensor inv_freq = at::pow(at::Scalar(options.theta), exponents).reciprocal();
  switch (options.scaling) {
    case RotaryScaling::kNone:
      return inv_freq;
    case RotaryScaling::kLinear:
      return inv_freq / options.factor;
    case RotaryScaling::kLlama3:
      return scaled_as_llama3(inv_freq, options);
  }
  runtime::unexpected("rotary: scaling", static_cast<int>(options.scaling));
}

// Rows begin .. begin + count - 1.
ops::RotaryTurns turns_of(const at::Tensor& inv_freq, int64_t begin, int64_t count) {
  const int64_t pairs = inv_freq.size(0);
  ops::RotaryTurns turns = {at::empty({count, 2 * pairs}, at::kFloat), at::empty({count, 2 * pairs}, at::kFloat)};
  const float* frequency = inv_freq.const_data_ptr<float>();
  float *cosine = turns.cosine.mutable_data_ptr<float>(), *sine = turns.sine.mutable_data_ptr<float>();
  for (int64_t row = 0; row < count; ++row, cosine += 2 * pairs, sine += 2 * pairs) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(static_cast<float>(begin + row) * frequency[i]);
      cosine[i] = cosine[pairs + i] = static_cast<float>(std::cos(angle));
      sine[i] = sine[pairs + i] = static_cast<float>(std::sin(angle));
    }
  }
  return turns;
}

}  // namespace

struct RotaryTable::Rows {
  std::mutex mutex;
  ops::RotaryTurns turns;
};

RotaryTable::RotaryTable(int64_t channels, const RotaryTableOptions& options) : rows_(std::make_shared<Rows>()) {
  check_options(channels, options);
  const auto rotated = static_cast<int64_t>(static_cast<double>(channels) * options.share);
  TORCH_CHECK_VALUE(rotated >= 2 && rotated % 2 == 0, "rotary: expected an even number of channels to turn, got ",
                    rotated, " of ", channels);
  const at::NoGradGuard no_grad;
  inv_freq_ = frequencies(rotated, options);
  rows_->turns = turns_of(inv_freq_, 0, 0);
}

ops::RotaryTurns RotaryTable::first(int64_t count) const {
  TORCH_CHECK(count <= kMostPositions, "rotary: expected positions below ", kMostPositions, ", got ", count - 1);
  const std::lock_guard<std::mutex> lock(rows_->mutex);
  ops::RotaryTurns& turns = rows_->turns;
  const int64_t there = turns.cosine.size(0);
  if (there < count) {
    const at::NoGradGuard no_grad;
    const ops::RotaryTurns more = turns_of(inv_freq_, there, std::max(count, 2 * there) - there);
    turns = {at::cat({turns.cosine, more.cosine}), at::cat({turns.sine, more.sine})};
  }
  return turns;
}

ops::RotaryTurns RotaryTable::at(int64_t begin, int64_t count) const {
  TORCH_CHECK(begin >= 0 && count >= 0 && begin <= kMostPositions, "rotary: expected positions from 0 on, got ", count,
              " from ", begin);
  const ops::RotaryTurns rows = first(begin + count);
  return {rows.cosine.narrow(0, begin, count), rows.sine.narrow(0, begin, count)};
}

ops::RotaryTurns RotaryTable::at(const at::Tensor& positions) const {
  TORCH_CHECK(positions.scalar_type() == at::kLong && positions.is_cpu(),
              "rotary: expected positions of int64 on the CPU, got ", positions.scalar_type(), " on ",
              positions.device());
  const at::Tensor flat = positions.reshape(-1);
  if (flat.numel() > 0) {
    const auto lowest = flat.min().item<int64_t>();
    TORCH_CHECK(lowest >= 0, "rotary: expected positions from 0 on, got ", lowest);
  }
  const ops::RotaryTurns rows = first(flat.numel() > 0 ? flat.max().item<int64_t>() + 1 : 0);
  std::vector<int64_t> sizes = positions.sizes().vec();
  sizes.push_back(rotated());
  return {rows.cosine.index_select(0, flat).view(sizes), rows.sine.index_select(0, flat).view(sizes)};
}

}  // namespace plimsoll::nn
