#include "plimsoll/autoscale/block_update.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "plimsoll/autoscale/storage.h"
#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/kernels/rescale/rescale.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::autoscale {
namespace {

constexpr int64_t kUpdateBlock = 8192;   // elements: 32 KB of values, and what they are made of, stay in L2
constexpr int32_t kLargestFactor = 126;  // log2 of what FP32 multiplies by without loss, up and down

// New values of one block, as a pass over the parameter saw them.
struct UpdatedBlock {
  double amax = 0;  // not finite where a value is not
  double sum_of_squares = 0;
  std::vector<float> values = {};  // which data of the old exponent do not hold
};

class BlockPass {
 public:
  explicit BlockPass(const at::Tensor& parameter)
      : shared_(scaled_impl(parameter).shared()),
        data_(data_of(parameter)),
        format_(ops::format_of(data_.scalar_type(), "autoscale")),
        moves_(!keeps_exponents(shared_.session->settings().policy)),
        blocks_(static_cast<size_t>((data_.numel() + kUpdateBlock - 1) / kUpdateBlock)) {
    if (keeps_remainder(parameter) && (!shared_.remainder.defined() || !lie_alike(data_, shared_.remainder)))
      shared_.remainder = at::zeros_like(data_);
  }

  void run(const UpdateBlock& update) {
    runtime::parallel_for(static_cast<int64_t>(blocks_.size()), 1, [&](int64_t begin, int64_t end) {
      auto* values = static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kRows, kUpdateBlock * sizeof(float)));
      for (int64_t i = begin; i < end; ++i) run_block(i, update, values);
    });
    shared_.codes = {};
    settle();
  }

 private:
  void run_block(int64_t index, const UpdateBlock& update, float* values) {
    const int64_t begin = index * kUpdateBlock, count = std::min(kUpdateBlock, data_.numel() - begin);
    kernels::rescale({.input = at_element(data_, begin),
                      .input_format = format_,
                      .input_remainder = at_element(shared_.remainder, begin),
                      .output = values,
                      .count = count,
                      .factor = std::exp2(static_cast<float>(shared_.scale.exponent))});
    update(begin, count, values);
    const kernels::GradientTensor tensor = {.data = values, .count = count};
    const kernels::GradientSummary seen = kernels::gradient_pass({.tensors = &tensor, .tensor_count = 1});
    UpdatedBlock& block = blocks_[static_cast<size_t>(index)];
    block.sum_of_squares = seen.sum_of_squares;
    block.amax = std::ldexp(double{write(begin, values, count)}, shared_.scale.exponent);
    if (seen.non_finite > 0) return;
    if (!std::isfinite(block.amax)) block.amax = largest_of(values, count);
    if (moves_ && !fits(std::log2(block.amax) - shared_.scale.exponent, data_.scalar_type()))
      block.values.assign(values, values + count);
  }

  // At the exponent that the parameter has; the amax of the data before they are rounded.
  float write(int64_t begin, const float* values, int64_t count) {
    return kernels::rescale({.input = values,
                             .output = at_element(data_, begin),
                             .output_format = format_,
                             .output_remainder = at_element(shared_.remainder, begin),
                             .count = count,
                             .factor = std::exp2(static_cast<float>(-shared_.scale.exponent))});
  }

  static double largest_of(const float* values, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(double{values[i]}));
    return largest;
  }

  // The scale of the new values, at the old exponent where that is near enough.
  void settle() {
    double amax = 0, sum_of_squares = 0;
    for (const UpdatedBlock& block : blocks_) {
      amax = std::isfinite(amax) && std::isfinite(block.amax) ? std::max(amax, block.amax) : amax + block.amax;
      sum_of_squares += block.sum_of_squares;
    }
    const at::ScalarType dtype = data_.scalar_type();
    if (!std::isfinite(amax) || amax == 0) {
      shared_.scale.bound = largest_bound(dtype) + 1;
      return;
    }
    const Scale needed = scale_of(std::sqrt(sum_of_squares / static_cast<double>(data_.numel())), amax);
    shared_.scale = with_exponent(needed, shared_.scale.exponent);
    if (!moves_) shared_.scale.bound = std::min(shared_.scale.bound, largest_bound(dtype) + 1);
    if (!moves_ || (fits(shared_.scale.bound, dtype) && std::fabs(shared_.scale.remainder) < kSlack)) return;
    set_exponent(shared_, needed.exponent);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const std::vector<float>& values = blocks_[i].values;
      if (!values.empty())
        write(static_cast<int64_t>(i) * kUpdateBlock, values.data(), static_cast<int64_t>(values.size()));
    }
  }

  SharedScale& shared_;
  const at::Tensor data_;
  const format::Format format_;
  const bool moves_;  // the session's policy lets the exponent change
  std::vector<UpdatedBlock> blocks_;
};

}  // namespace

const at::Tensor& data_of(const at::Tensor& x) { return is_scaled(x) ? scaled_impl(x).data() : x; }

char* at_element(const at::Tensor& x, int64_t index) {
  return x.defined() ? static_cast<char*>(x.data_ptr()) + index * static_cast<int64_t>(x.element_size()) : nullptr;
}

bool is_factor(int32_t exponent) { return std::abs(exponent) <= kLargestFactor; }

bool can_update_blocks(const at::Tensor& parameter) {
  if (!is_scaled(parameter)) return false;
  const ScaledTensorImpl& impl = scaled_impl(parameter);
  const Settings& settings = impl.shared().session->settings();
  return impl.is_base() && impl.data().is_non_overlapping_and_dense() && is_factor(impl.scale().exponent) &&
         settings.rounding != Rounding::kStochastic && !settings.counts_range &&
         settings.policy.method != Method::kAmax && settings.policy.method != Method::kDelayed;
}

void update_blocks(const at::Tensor& parameter, const UpdateBlock& update) { BlockPass(parameter).run(update); }

bool is_state_of(const at::Tensor& state, const at::Tensor& like) {
  return data_of(state).scalar_type() == at::kFloat && (!is_scaled(state) || scaled_impl(state).is_base()) &&
         lie_alike(like, data_of(state));
}

at::Tensor values_of_state(const at::Tensor& state) {
  if (!is_scaled(state)) return state;
  SharedScale& shared = scaled_impl(state).shared();
  if (shared.scale.exponent != 0) set_exponent(shared, 0);
  shared.scale.bound = kUnbounded;
  return scaled_impl(state).data();
}

bool is_gradient_of(const at::Tensor& gradient, const at::Tensor& like) {
  if (!lie_alike(like, data_of(gradient))) return false;
  if (!is_scaled(gradient)) return gradient.scalar_type() == at::kFloat;
  return scaled_impl(gradient).scale().is_zero() || is_factor(scaled_impl(gradient).scale().exponent);
}

float factor_of(const at::Tensor& gradient) {
  if (!is_scaled(gradient) || scaled_impl(gradient).scale().is_zero()) return 1;
  return std::exp2(static_cast<float>(scaled_impl(gradient).scale().exponent));
}

}  // namespace plimsoll::autoscale
