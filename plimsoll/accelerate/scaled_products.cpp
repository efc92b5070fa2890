// _scaled_mm and _scaled_mm_v2: products of FP8 codes with an FP32 scale of each tensor or of each row.
#include <ATen/ops/empty.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/audited_product.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/gemm_batched.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::acceleration {
namespace {

using format::Format;

// Scales as torch names them in _scaled_mm_v2 (ScalingType). _scaled_mm knows them by their sizes.
enum class Scaling : int64_t { kOfTensors = 0, kOfRows = 1 };

struct ScaledProduct {
  const at::Tensor &a, &b;  // codes [m, k], [k, n]
  const at::Tensor &scale_a, &scale_b;
  std::optional<at::Tensor> bias = {};  // [n]
  bool scales_result = false;
  std::optional<Scaling> scaling = {};
  at::ScalarType dtype = at::kFloat;  // of the result
  at::Tensor out = {};                // the caller's, or undefined
};

// kFp32 where x is something else than codes.
Format codes_of(const at::Tensor& x) {
  if (!x.defined() || !x.device().is_cpu() || x.layout() != at::kStrided || !x.has_storage()) return Format::kFp32;
  if (x.scalar_type() == at::kFloat8_e4m3fn) return Format::kE4m3;
  return x.scalar_type() == at::kFloat8_e5m2 ? Format::kE5m2 : Format::kFp32;
}

bool is_fp32(const at::Tensor& x) { return has_values(x) && x.scalar_type() == at::kFloat; }

// torch takes a scale of up to two dimensions.
bool is_one(const at::Tensor& scale) { return scale.numel() == 1 && scale.dim() <= 2; }

// One scale for either tensor, or one for each row of a and each column of b.
bool are_scales(const ScaledProduct& call) {
  const auto &scale_a = call.scale_a, &scale_b = call.scale_b;
  if (is_one(scale_a) && is_one(scale_b) && call.scaling != Scaling::kOfRows) return true;
  return call.scaling != Scaling::kOfTensors && scale_a.sizes().equals({call.a.size(0), 1}) &&
         scale_b.sizes().equals({1, call.b.size(1)}) && scale_a.is_contiguous() && scale_b.is_contiguous();
}

Outcome judge_scaled(const ScaledProduct& call) {
  const auto& [a, b, scale_a, scale_b, bias, scales_result, scaling, dtype, out] = call;
  if (codes_of(a) == Format::kFp32 || codes_of(b) == Format::kFp32 || !is_fp32(scale_a) || !is_fp32(scale_b) ||
      (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) || (bias && !has_values(*bias)) ||
      (out.defined() && (!has_values(out) || out.scalar_type() != dtype)))
    return Outcome::kDtype;
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0) || a.numel() == 0 || b.numel() == 0 || scales_result ||
      !are_scales(call) || (bias && !bias->sizes().equals({b.size(1)})))
    return Outcome::kShape;
  const std::array<int64_t, 2> sizes = {a.size(0), b.size(1)};
  if (!ops::is_readable(a) || !ops::is_readable(b)) return Outcome::kStrides;
  if (out.defined() &&
      (!is_writable(out, sizes) || out.is_alias_of(a) || out.is_alias_of(b) || (bias && out.is_alias_of(*bias))))
    return Outcome::kStrides;
  return choose(ScaledProductCall{.m = sizes[0], .n = sizes[1], .k = a.size(1)}, processor(runtime::matmul_isa()));
}

kernels::ScaleView view_of(const at::Tensor& scale) {
  return {.data = scale.const_data_ptr<float>(), .block_rows = is_one(scale) ? 0 : 1, .row_stride = 1};
}

void multiply_scaled(const ScaledProduct& call, const at::Tensor& output) {
  const auto& [a, b, scale_a, scale_b, given_bias, scales_result, scaling, dtype, out] = call;
  const at::Tensor bias = ops::as_fp32(given_bias.value_or(at::Tensor()));
  kernels::Gemm args = {.a = ops::operand_as_stored(a, {.row = 0, .k = 1}, codes_of(a)),
                        .b = ops::operand_as_stored(b, {.row = 1, .k = 0}, codes_of(b)),
                        .m = a.size(0),
                        .n = b.size(1),
                        .k = a.size(1),
                        .output = output.mutable_data_ptr(),
                        .output_format = ops::format_of(dtype, "accelerate"),
                        .output_stride = b.size(1),
                        .epilogue = {.bias = ops::data_or_null(bias)}};
  args.a.scale = view_of(scale_a);
  args.b.scale = view_of(scale_b);
  ops::audit_product({.op = "scaled_mm",
                      .a = args.a,
                      .b = args.b,
                      .k = args.k,
                      .output = args.output_format,
                      .operations = 2.0 * static_cast<double>(output.numel() * args.k)});
  kernels::gemm(args);
}

// Takes the arguments off the stack where the product was made.
Outcome run_scaled(ops::CallStack& stack, size_t arguments, const ScaledProduct& call) {
  if (const Outcome outcome = judge_scaled(call); outcome != Outcome::kReplaced) return outcome;
  at::Tensor output =
      call.out.defined() ? call.out : at::empty({call.a.size(0), call.b.size(1)}, call.a.options().dtype(call.dtype));
  multiply_scaled(call, output);
  replace_arguments(stack, arguments, std::move(output));
  return Outcome::kReplaced;
}

// self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum and, of the variant that writes, out.
template <size_t arguments>
Outcome scaled_mm(ops::CallStack& stack) {
  const at::Tensor& a = tensor(stack, arguments, 0);
  return run_scaled(stack, arguments,
                    {.a = a,
                     .b = tensor(stack, arguments, 1),
                     .scale_a = tensor(stack, arguments, 2),
                     .scale_b = tensor(stack, arguments, 3),
                     .bias = optional_tensor(stack, arguments, 4),
                     .scales_result = optional_tensor(stack, arguments, 5).has_value(),
                     .dtype = argument(stack, arguments, 6).toOptional<at::ScalarType>().value_or(a.scalar_type()),
                     .out = arguments == 9 ? tensor(stack, arguments, 8) : at::Tensor()});
}

bool is_list_of(const c10::IValue& list, int64_t only) {
  return list.isIntList() && list.toIntVector() == std::vector{only};
}

// self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, contraction_dim, use_fast_accum; scales,
// recipes and swizzles are lists.
Outcome scaled_mm_v2(ops::CallStack& stack) {
  constexpr size_t kArguments = 12;
  const auto of = [&](size_t place) -> const c10::IValue& { return argument(stack, kArguments, place); };
  const auto is_empty = [&](size_t place) { return of(place).isIntList() && of(place).toIntVector().empty(); };
  const auto is_plain = [&](size_t place) { return is_empty(place) || is_list_of(of(place), 0); };
  if (!is_plain(4) || !is_plain(7) || !is_empty(10)) return Outcome::kShape;
  for (const Scaling scaling : {Scaling::kOfTensors, Scaling::kOfRows}) {
    const auto number = static_cast<int64_t>(scaling);
    if (!is_list_of(of(3), number) || !is_list_of(of(6), number)) continue;
    const std::vector<at::Tensor> scale_a = of(2).toTensorVector(), scale_b = of(5).toTensorVector();
    const auto dtype = of(9).toOptional<at::ScalarType>();
    if (scale_a.size() != 1 || scale_b.size() != 1 || !dtype) return Outcome::kShape;
    return run_scaled(stack, kArguments,
                      {.a = tensor(stack, kArguments, 0),
                       .b = tensor(stack, kArguments, 1),
                       .scale_a = scale_a[0],
                       .scale_b = scale_b[0],
                       .bias = optional_tensor(stack, kArguments, 8),
                       .scaling = scaling,
                       .dtype = *dtype});
  }
  return Outcome::kShape;
}

}  // namespace

std::vector<Variant> scaled_product_variants() {
  return {{"_scaled_mm", Operator::kScaledMm, scaled_mm<8>},
          {"_scaled_mm.out", Operator::kScaledMm, scaled_mm<9>},
          {"_scaled_mm_v2", Operator::kScaledMm, scaled_mm_v2}};
}

}  // namespace plimsoll::acceleration
