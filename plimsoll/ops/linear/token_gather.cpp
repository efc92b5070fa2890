#include "plimsoll/ops/linear/token_gather.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;

// The one scale of a tensor, which all ranks have.
at::Tensor common_scale(const RankGroup& group, const at::Tensor& scale) {
  const at::Tensor scales = group.all_gather(scale.flatten());
  const std::vector<float> all = read_on_host({scale, scales});
  const float own = all.front();
  const bool equal =
      std::ranges::all_of(all, [own](float other) { return other == own || (std::isnan(other) && std::isnan(own)); });
  TORCH_CHECK(equal, "sequence_parallel: expected one scale on all ranks of tp_group, got ", own, " on this one and ",
              scales, " on all; pass an fp8_group that holds tp_group, and load the same scaling state on each rank");
  return scale;
}

ScaledTensor gather(const RankGroup& group, const ScaledTensor& local) {
  ScaledTensor whole = local;
  whole.data = group.all_gather(local.data);
  if (local.has_codes()) {
    const bool one_scale = local.granularity == recipe::kPerTensor;
    whole.scale = one_scale ? common_scale(group, local.scale) : group.all_gather(local.scale);
  }
  return whole;
}

}  // namespace

bool codes_travel(const LinearScaling& scaling, Role role, GemmKind gemm, int64_t rows) {
  if (!scaling.parallel.gathers(role)) return true;
  const recipe::Granularity stored = scaling.recipe->stored_operand(role, gemm).granularity;
  return stored == recipe::kPerTensor || (stored.block_rows > 0 && rows % stored.block_rows == 0);
}

ScaledTensor of_all_tokens(const LinearScaling& scaling, Role role, const ScaledTensor& local) {
  return scaling.parallel.gathers(role) ? gather(*scaling.parallel.group, local) : local;
}

at::Tensor values_of_all_tokens(const LinearScaling& scaling, Role role, const at::Tensor& local) {
  return scaling.parallel.gathers(role) ? scaling.parallel.group->all_gather(local) : local;
}

Operands make_gradient(const at::Tensor& grad, const LinearScaling& scaling, OperandMaker& maker, GemmSet wanted,
                       at::Tensor* column_sum) {
  const Role role = Role::kGradOutput;
  const auto travels = [&](bool wants, GemmKind gemm) {
    return !wants || codes_travel(scaling, role, gemm, grad.size(0));
  };
  if (!travels(wanted.grad_input, GemmKind::kGradInput) || !travels(wanted.grad_weight, GemmKind::kGradWeight)) {
    return maker.make(values_of_all_tokens(scaling, role, grad), role, wanted, column_sum);
  }
  Operands operands = maker.make(grad, role, wanted, column_sum);
  const bool shared = operands.grad_input.data.is_same(operands.grad_weight.data);
  if (wanted.grad_input) operands.grad_input = of_all_tokens(scaling, role, operands.grad_input);
  if (wanted.grad_weight) {
    operands.grad_weight = shared ? operands.grad_input : of_all_tokens(scaling, role, operands.grad_weight);
  }
  return operands;
}

ScaledTensor produce_input_again(const Producer& producer, int64_t rows, const LinearScaling& scaling,
                                 const OperandMaker& maker, const ScaleRef& scale) {
  const Role role = Role::kInput;
  if (codes_travel(scaling, role, GemmKind::kGradWeight, rows)) {
    return of_all_tokens(scaling, role, maker.produce_again(producer, role, GemmKind::kGradWeight, scale));
  }
  const at::Tensor values = producer(format::Format::kFp32, {}).values;
  return maker.make_again(values_of_all_tokens(scaling, role, values), role, GemmKind::kGradWeight, scale);
}

}  // namespace plimsoll::ops
