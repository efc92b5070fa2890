#include "plimsoll/autoscale/elementwise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/operands.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/kernels/rescale/rescale.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

constexpr int64_t kFunctionBlock = 16384;  // elements: 64 KB of each operand and of the result
constexpr int32_t kLargestShiftOfValues = 100;

struct BlockSums {
  float amax = 0;
  double sum_of_squares = 0;
};

class BlockedCall {
 public:
  BlockedCall(const Plan& plan, Operands& operands, const Stack& stack)
      : plan_(plan),
        operands_(operands.all()),
        arguments_(stack.end() - static_cast<std::ptrdiff_t>(plan.arguments.size()), stack.end()),
        data_(scaled_impl(operands_.front().tensor).data()),
        format_(ops::format_of(data_.scalar_type(), "autoscale")),
        blocks_((data_.numel() + kFunctionBlock - 1) / kFunctionBlock),
        seen_(static_cast<size_t>(blocks_)),
        result_(at::empty_like(data_)) {}

  const at::Tensor& result() const { return result_; }

  // Writes the result at an exponent, of which that of linear operands is left out. The scale that it has
  // there; nothing where something is not finite, or is a mask.
  std::optional<Scale> run(int32_t exponent) {
    runtime::parallel_for(blocks_, 1, [&](int64_t begin, int64_t end) {
      const BelowAutoscale below;
      const Stack stack = with_blocks();
      for (int64_t i = begin; i < end; ++i) seen_[static_cast<size_t>(i)] = run_block(i, stack, exponent);
    });
    BlockSums all;
    for (const BlockSums& seen : seen_) {
      if (!(seen.amax < std::ldexp(kMaskValue, -exponent))) return std::nullopt;
      all.amax = std::max(all.amax, seen.amax);
      all.sum_of_squares += seen.sum_of_squares;
    }
    if (all.amax == 0) return zero_scale();
    return Scale{.exponent = exponent,
                 .remainder = 0.5 * std::log2(all.sum_of_squares / static_cast<double>(data_.numel())) - exponent,
                 .bound = std::log2(static_cast<double>(all.amax))};
  }

  // The scale that the first block's results ask for.
  Scale first_scale() {
    Stack stack = with_blocks();
    const BlockSums seen = run_block(0, stack, 0);
    const auto count = static_cast<double>(std::min(kFunctionBlock, data_.numel()));
    return std::isfinite(seen.amax) ? scale_of(std::sqrt(seen.sum_of_squares / count), seen.amax) : zero_scale();
  }

 private:
  // The call's arguments with memory for a block of values in place of tensors.
  Stack with_blocks() const {
    Stack stack = arguments_;
    for (const Operand& operand : operands_)
      stack[operand.argument] = at::empty({std::min(kFunctionBlock, data_.numel())}, at::kFloat);
    return stack;
  }

  BlockSums run_block(int64_t index, const Stack& blocks, int32_t exponent) {
    const int64_t begin = index * kFunctionBlock, count = std::min(kFunctionBlock, data_.numel() - begin);
    Stack call = blocks;
    for (const Operand& operand : operands_) {
      const ScaledTensorImpl& impl = scaled_impl(operand.tensor);
      const at::Tensor& block = blocks[operand.argument].toTensor();
      const at::Tensor values = count == block.numel() ? block : block.narrow(0, 0, count);
      kernels::rescale({.input = static_cast<const uint16_t*>(impl.data().const_data_ptr()) + begin,
                        .input_format = format_,
                        .output = values.mutable_data_ptr<float>(),
                        .count = count,
                        .factor = operand.is_value() ? std::exp2(static_cast<float>(impl.scale().exponent)) : 1.0f});
      call[operand.argument] = values;
    }
    plan_.run.callBoxed(call);
    at::Tensor values = call.front().toTensor();
    const kernels::GradientTensor tensor = {.data = values.mutable_data_ptr<float>(), .count = count};
    const double sum_of_squares = kernels::gradient_pass({.tensors = &tensor, .tensor_count = 1}).sum_of_squares;
    const float amax = kernels::rescale({.input = values.const_data_ptr<float>(),
                                         .output = static_cast<uint16_t*>(result_.mutable_data_ptr()) + begin,
                                         .output_format = format_,
                                         .count = count,
                                         .factor = std::exp2(static_cast<float>(-exponent))});
    return {.amax = amax, .sum_of_squares = sum_of_squares};
  }

  const Plan& plan_;
  const std::vector<Operand>& operands_;
  const Stack arguments_;
  const at::Tensor data_;
  const format::Format format_;
  const int64_t blocks_;
  std::vector<BlockSums> seen_;
  at::Tensor result_;
};

bool can_block(const Plan& plan, Operands& operands) {
  const Settings& settings = operands.session()->settings();
  if (plan.in_place || settings.policy.method != Method::kAutoscale || settings.counts_range ||
      operands.logical() != at::kFloat)
    return false;
  const at::Tensor& first = operands.all().front().tensor;
  for (const Operand& operand : operands.all()) {
    if (!is_scaled(operand.tensor) || scaled_impl(operand.tensor).scale().is_zero()) return false;
    const ScaledTensorImpl& impl = scaled_impl(operand.tensor);
    if (impl.data().scalar_type() == at::kFloat || std::abs(impl.scale().exponent) > kLargestShiftOfValues ||
        !lie_alike(scaled_impl(first).data(), impl.data()))
      return false;
  }
  return scaled_impl(first).data().numel() > 0;
}

// The exponent of the linear operands, which their data leave out.
int32_t left_out(const std::vector<Operand>& operands) {
  int32_t exponent = 0;
  for (const Operand& operand : operands)
    if (operand.use == Use::kLinear) exponent += scaled_impl(operand.tensor).scale().exponent;
  return exponent;
}

std::optional<Encoded> blocked(const Plan& plan, Operands& operands, const Stack& stack) {
  BlockedCall call(plan, operands, stack);
  const int32_t outside = left_out(operands.all());
  const bool like_first = plan.results.front().scale == ResultScale::kLikeFirst;
  const Scale guess = like_first ? scaled_impl(operands.all().front().tensor).scale() : call.first_scale();
  if (guess.is_zero()) return std::nullopt;
  int32_t exponent = like_first ? guess.exponent - outside : guess.exponent;
  for (int attempt = 0; attempt < 2 && std::abs(exponent) <= kLargestShiftOfValues; ++attempt) {
    std::optional<Scale> scale = call.run(exponent);
    if (!scale || scale->is_zero()) return scale ? std::optional(Encoded{call.result(), *scale}) : std::nullopt;
    if (fits(scale->bound, call.result().scalar_type()) && std::fabs(scale->remainder) < kSlack) {
      scale->exponent += outside;
      return Encoded{.data = call.result(), .scale = *scale};
    }
    exponent = scale_of(std::exp2(scale->rms()), std::exp2(scale->largest())).exponent;
  }
  return std::nullopt;
}

}  // namespace

void run_in_blocks(const Plan& plan, Stack& stack) {
  Operands operands(plan, stack);
  if (!can_block(plan, operands)) return execute(plan, stack);
  std::optional<Encoded> result;
  {
    const BelowAutoscale below;
    result = blocked(plan, operands, stack);
  }
  if (!result) return execute(plan, stack);
  operands.session()->count(plan.name, &CallCounts::wide);
  torch::jit::drop(stack, plan.arguments.size());
  stack.emplace_back(make_scaled(result->data, operands.options(result->scale)));
}

}  // namespace plimsoll::autoscale
