#include "plimsoll/autoscale/in_place.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "plimsoll/autoscale/block_update.h"
#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/kernels/rescale/rescale.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

constexpr int64_t kStateBlock = 16384;  // elements: 64 KB of each operand

class InPlaceCall {
 public:
  InPlaceCall(const Plan& plan, const Stack& stack)
      : plan_(plan), arguments_(stack.end() - static_cast<std::ptrdiff_t>(plan.arguments.size()), stack.end()) {}

  // False, and nothing is done, where it takes another way.
  bool run() {
    const at::Tensor target = arguments_.front().toTensor();
    if (target.scalar_type() != at::kFloat || !operands_lie_like(data_of(target))) return false;
    const SharedScale& shared = scaled_impl(target).shared();
    for (c10::IValue& value : arguments_)
      if (value.isTensor() && value.toTensor().dim() == 0) value = value_of(value.toTensor());
    if (shared.wide) {
      run_on_state(values_of_state(target));
    } else {
      update_blocks(target, [&](int64_t begin, int64_t count, float* values) { run_block(begin, count, values); });
    }
    shared.session->count(plan_.name, &CallCounts::wide);
    return true;
  }

 private:
  bool operands_lie_like(const at::Tensor& data) const {
    const at::Tensor& target = arguments_.front().toTensor();
    const SharedScale& shared = scaled_impl(target).shared();
    const bool parameter = shared.parameter || (target.requires_grad() && target.is_leaf());
    const bool takes_blocks = shared.wide ? is_state_of(target, data) : parameter && can_update_blocks(target);
    return takes_blocks && std::all_of(arguments_.begin() + 1, arguments_.end(), [&](const c10::IValue& value) {
             return !value.isTensor() || value.toTensor().dim() == 0 || is_gradient_of(value.toTensor(), data);
           });
  }

  void run_on_state(const at::Tensor& data) {
    const int64_t blocks = (data.numel() + kStateBlock - 1) / kStateBlock;
    runtime::parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = i * kStateBlock, count = std::min(kStateBlock, data.numel() - begin);
        run_block(begin, count, reinterpret_cast<float*>(at_element(data, begin)));
      }
    });
  }

  void run_block(int64_t begin, int64_t count, float* values) const {
    const BelowAutoscale below;
    Stack call = arguments_;
    call.front() = at::from_blob(values, {count}, at::kFloat);
    for (size_t i = 1; i < call.size(); ++i) {
      if (!call[i].isTensor() || call[i].toTensor().dim() == 0) continue;
      const bool again = i > 1 && arguments_[i].isSameIdentity(arguments_[i - 1]);
      call[i] = again ? call[i - 1] : c10::IValue(block_of(arguments_[i].toTensor(), begin, count));
    }
    plan_.called.callBoxed(call);
  }

  static at::Tensor block_of(const at::Tensor& operand, int64_t begin, int64_t count) {
    const at::Tensor& data = data_of(operand);
    const float factor = factor_of(operand);
    if (data.scalar_type() == at::kFloat && factor == 1)
      return at::from_blob(at_element(data, begin), {count}, at::kFloat);
    const at::Tensor values = at::empty({count}, at::kFloat);
    kernels::rescale({.input = at_element(data, begin),
                      .input_format = ops::format_of(data.scalar_type(), "autoscale"),
                      .output = values.mutable_data_ptr<float>(),
                      .count = count,
                      .factor = factor});
    return values;
  }

  const Plan& plan_;
  Stack arguments_;
};

}  // namespace

void run_in_place(const Plan& plan, Stack& stack) {
  const at::Tensor target = stack[stack.size() - plan.arguments.size()].toTensor();
  {
    const BelowAutoscale below;
    if (!is_scaled(target) || !InPlaceCall(plan, stack).run()) {
      execute(plan, stack);
      return;
    }
  }
  torch::jit::drop(stack, plan.arguments.size());
  stack.emplace_back(target);
}

}  // namespace plimsoll::autoscale
