#include "plimsoll/ops/tensor/quantize_fp4.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using recipe::OperandRecipe;

// Random numbers of one seed: signs of a rotation, then roundings along rows and along columns of each role. Were those of
// a product's operands the same, their errors would not vanish in the mean of the product.
constexpr uint64_t kSigns = 0;
uint64_t rounding_step(recipe::Role role, bool turned) {
  const auto of_role = [&]() -> uint64_t {
    switch (role) {
      case recipe::Role::kGradOutput:
        return 1;
      case recipe::Role::kInput:
        return 3;
      case recipe::Role::kWeight:
        return 5;
    }
    runtime::unexpected("quantize: role", static_cast<int>(role));
  };
  return of_role() + (turned ? 1 : 0);
}

using runtime::divide_up;

// Memory of codes and scales; `lines` of `length` elements.
ScaledTensor fp4_memory(const at::Tensor& x, const OperandRecipe& operand, int64_t lines, int64_t length) {
  if (operand.rotation > 0) length = divide_up(length, operand.rotation) * operand.rotation;
  const int64_t block = format::fp4_block(operand.scaling);
  ScaledTensor tensor{.data = at::empty({lines, divide_up(length, 2)}, x.options().dtype(at::kByte)),
                      .format = operand.format,
                      .granularity = operand.granularity,
                      .scale_format = operand.scale_format,
                      .turned = operand.turned,
                      .length = length};
  if (format::is_nvfp4(operand.scaling)) tensor.scale = at::empty({1}, x.options().dtype(at::kFloat));
  tensor.block_scale = at::empty({lines, divide_up(length, block)}, tensor.data.options());
  return tensor;
}

// The pass that fills the memory.
kernels::Fp4Lines fp4_lines(const OperandRecipe& operand, recipe::Role role, ScaledTensor& tensor, uint64_t seed,
                            const AmaxSlot& amax) {
  return {.codes = tensor.data.mutable_data_ptr<uint8_t>(),
          .codes_stride = tensor.data.size(1),
          .scale = tensor.block_scale.mutable_data_ptr<uint8_t>(),
          .scale_stride = tensor.block_scale.size(1),
          .rotation = {.size = operand.rotation, .seed = seed, .step = kSigns},
          .noise = {.stochastic = operand.stochastic, .seed = seed, .step = rounding_step(role, operand.turned)},
          .tensor_amax = operand.rotation == 0 ? amax.data() : nullptr,
          .tensor_scale = tensor.scale.defined() ? tensor.scale.mutable_data_ptr<float>() : nullptr};
}

QuantizedFp4 quantize_lines(const at::Tensor& x, const Fp4Operands& operands, uint64_t seed, bool measures,
                            const AmaxSlot& amax) {
  QuantizedFp4 result{.rows = {}, .turned = {}, .amax = AmaxSlot(x.device())};
  kernels::QuantizeFp4 pass{.x = x.const_data_ptr(),
                            .x_format = format_of(x.scalar_type(), "quantize"),
                            .rows = x.size(0),
                            .cols = x.size(1),
                            .x_stride = x.stride(0),
                            .scaling = (operands.rows ? operands.rows : operands.turned)->scaling};
  if (operands.rows) {
    result.rows = fp4_memory(x, *operands.rows, x.size(0), x.size(1));
    pass.by_row = fp4_lines(*operands.rows, operands.role, result.rows, seed, amax);
    if (measures) pass.by_row.statistic = as_statistic(result.rows_statistic = statistic_memory(x));
  }
  if (operands.turned) {
    result.turned = fp4_memory(x, *operands.turned, x.size(1), x.size(0));
    pass.by_column = fp4_lines(*operands.turned, operands.role, result.turned, seed, amax);
    if (measures) pass.by_column.statistic = as_statistic(result.turned_statistic = statistic_memory(x));
  }
  (operands.rows ? pass.by_row : pass.by_column).amax = result.amax.data();
  const watch::Span span("quantize four bits", {.bytes = traffic(x, result.rows.data, result.turned.data)});
  kernels::quantize_fp4(pass);
  return result;
}

// Both directions have the same values, and so the same statistic.
QuantizedFp4 quantize_squares(const at::Tensor& x, const Fp4Operands& operands, bool measures, const AmaxSlot& amax) {
  const OperandRecipe& operand = operands.rows ? *operands.rows : *operands.turned;
  const int64_t rows = x.size(0), cols = x.size(1), side = operand.granularity.block_rows;
  ScaledTensor codes = fp4_memory(x, operand, rows, cols);
  codes.turned = false;
  codes.block_scale = at::empty({divide_up(rows, side), divide_up(cols, side)}, codes.data.options());
  ScaledTensor turned = codes;
  turned.data = operands.turned ? at::empty({cols, divide_up(rows, 2)}, codes.data.options()) : at::Tensor();
  turned.block_scale = codes.block_scale.t();
  turned.turned = true;
  turned.length = rows;
  QuantizedFp4 result{.rows = {}, .turned = {}, .amax = AmaxSlot(x.device())};
  const at::Tensor statistic = measures ? statistic_memory(x) : at::Tensor();
  const watch::Span span("quantize four bits", {.bytes = traffic(x, codes.data, turned.data)});
  kernels::quantize_fp4_squares({.x = x.const_data_ptr(),
                                 .x_format = format_of(x.scalar_type(), "quantize"),
                                 .rows = rows,
                                 .cols = cols,
                                 .x_stride = x.stride(0),
                                 .scaling = operand.scaling,
                                 .codes = codes.data.mutable_data_ptr<uint8_t>(),
                                 .codes_stride = codes.data.size(1),
                                 .transposed = operands.turned ? turned.data.mutable_data_ptr<uint8_t>() : nullptr,
                                 .transposed_stride = operands.turned ? turned.data.size(1) : 0,
                                 .scale = codes.block_scale.mutable_data_ptr<uint8_t>(),
                                 .scale_stride = codes.block_scale.size(1),
                                 .tensor_amax = amax.data(),
                                 .tensor_scale = codes.scale.mutable_data_ptr<float>(),
                                 .amax = result.amax.data(),
                                 .statistic = measures ? as_statistic(statistic) : nullptr});
  result.rows_statistic = result.turned_statistic = statistic;
  if (operands.rows) result.rows = std::move(codes);
  if (operands.turned) result.turned = std::move(turned);
  return result;
}

// Whether one pass makes both directions.
bool in_one_pass(const Fp4Operands& operands) {
  return !operands.rows || !operands.turned ||
         (operands.rows->scaling == operands.turned->scaling &&
          (operands.rows->granularity == recipe::kNvfp4Square) ==
              (operands.turned->granularity == recipe::kNvfp4Square));
}

}  // namespace

QuantizedFp4 quantize_fp4(const at::Tensor& x, const Fp4Operands& operands, uint64_t seed, bool measures,
                          const AmaxSlot& amax) {
  TORCH_INTERNAL_ASSERT(operands.wanted());
  const at::Tensor dense = with_dense_rows(x);
  if (!in_one_pass(operands)) {
    QuantizedFp4 result = quantize_fp4(dense, {.role = operands.role, .rows = operands.rows}, seed, measures, amax);
    QuantizedFp4 turned = quantize_fp4(dense, {.role = operands.role, .turned = operands.turned}, seed, measures, amax);
    result.turned = std::move(turned.turned);
    result.turned_statistic = std::move(turned.turned_statistic);
    return result;
  }
  const OperandRecipe& any = operands.rows ? *operands.rows : *operands.turned;
  QuantizedFp4 result = any.granularity == recipe::kNvfp4Square ? quantize_squares(dense, operands, measures, amax)
                                                                : quantize_lines(dense, operands, seed, measures, amax);
  if (x.numel() == 0) {  // the kernel has nothing to visit
    *result.amax.data() = 0;
    for (const ScaledTensor* codes : {&result.rows, &result.turned}) {
      if (codes->scale.defined()) codes->scale.fill_(1);
    }
  }
  return result;
}

}  // namespace plimsoll::ops
