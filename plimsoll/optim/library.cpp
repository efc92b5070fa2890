// The optimizer's step as torch knows it: torch.ops.plimsoll.adamw_.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "plimsoll/kernels/adamw/adamw_cuda.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/optim/adamw.h"
#include "plimsoll/optim/state_conversion.h"

namespace plimsoll::optim {
namespace {

void check_shape(const at::Tensor& tensor, const at::Tensor& parameter) {
  TORCH_CHECK(tensor.device() == parameter.device(), "adamw_: expected tensors on ", parameter.device(),
              ", got one on ", tensor.device());
  TORCH_CHECK(tensor.is_contiguous() && tensor.sizes() == parameter.sizes() && !tensor.is_neg(),
              "adamw_: expected contiguous tensors ", parameter.sizes(), ", got ", tensor.sizes(), " with strides ",
              tensor.strides(), tensor.is_neg() ? ", a view of negated memory" : "");
}

void check_scale(const char* op, const at::Tensor& scale, int64_t numel) {
  TORCH_CHECK(scale.scalar_type() == at::kHalf && scale.is_contiguous() && !scale.is_neg() &&
                  scale.sizes() == at::IntArrayRef{scale_count(numel)},
              op, ": expected a contiguous scale of float16 [", scale_count(numel), "], got ", scale.scalar_type(), " ",
              scale.sizes());
}

// 8-bit moments of a parameter have scales.
bool check_moments(const at::Tensor& parameter, const at::Tensor& moment1, const at::Tensor& moment2,
                   const std::optional<at::Tensor>& scale1, const std::optional<at::Tensor>& scale2) {
  const at::ScalarType first = moment1.scalar_type(), second = moment2.scalar_type();
  const bool in_8_bits = first == at::kChar && second == at::kByte;
  TORCH_CHECK(in_8_bits || (first == second && (first == at::kFloat || first == at::kBFloat16)),
              "adamw_: expected both moments of float32 or bfloat16, or of int8 and uint8, got ", first, " and ",
              second);
  TORCH_CHECK(scale1.has_value() == in_8_bits && scale2.has_value() == in_8_bits,
              "adamw_: expected scales of 8-bit moments, and of no others");
  if (in_8_bits) {
    for (const at::Tensor* scale : {&*scale1, &*scale2}) check_scale("adamw_", *scale, parameter.numel());
  }
  return in_8_bits;
}

StateKind kind_of(const at::Tensor& moment1) {
  const at::ScalarType dtype = moment1.scalar_type();
  return dtype == at::kFloat ? StateKind::kFp32 : dtype == at::kBFloat16 ? StateKind::kBf16 : StateKind::k8Bit;
}

uint16_t* data_of(const std::optional<at::Tensor>& scale) {
  return scale ? reinterpret_cast<uint16_t*>(scale->data_ptr<at::Half>()) : nullptr;
}

void adamw_op(at::Tensor& parameter, const at::Tensor& grad, at::Tensor& moment1, at::Tensor& moment2, int64_t step,
              double lr, double beta1, double beta2, double eps, double weight_decay,
              const std::optional<at::Tensor>& given_master, const std::optional<at::Tensor>& correction,
              const std::optional<at::Tensor>& scale1, const std::optional<at::Tensor>& scale2, int64_t seed,
              int64_t index) {
  const format::Format format = ops::format_of(parameter.scalar_type(), "adamw_");
  const bool is_wide = format == format::Format::kFp32;
  TORCH_CHECK(!given_master || !is_wide, "adamw_: expected no master of a parameter of float32, got one");
  TORCH_CHECK(given_master || format != format::Format::kFp16,
              "adamw_: expected a parameter of float16 with a master, got none");
  TORCH_CHECK(!correction || (format == format::Format::kBf16 && !given_master),
              "adamw_: expected a correction of a bfloat16 parameter without a master, got one of ",
              parameter.scalar_type());
  const at::Tensor master = is_wide ? parameter : given_master.value_or(at::Tensor());
  TORCH_CHECK(!master.defined() || master.scalar_type() == at::kFloat,
              "adamw_: expected a parameter or its master of float32, got ", master.scalar_type());
  TORCH_CHECK(!correction || correction->scalar_type() == at::kChar, "adamw_: expected a correction of int8, got ",
              correction->scalar_type());
  const bool in_8_bits = check_moments(parameter, moment1, moment2, scale1, scale2);
  for (const at::Tensor& tensor : {at::Tensor(parameter), master, correction.value_or(at::Tensor()), grad,
                                   at::Tensor(moment1), at::Tensor(moment2)}) {
    if (tensor.defined()) check_shape(tensor, parameter);
  }
  TORCH_CHECK(step >= 1, "adamw_: expected steps counted from 1, got ", step);
  const kernels::AdamW args{.master = master.defined() ? master.data_ptr<float>() : nullptr,
                            .narrow = is_wide ? nullptr : parameter.data_ptr(),
                            .narrow_format = is_wide ? format::Format::kBf16 : format,
                            .correction = correction ? correction->data_ptr<int8_t>() : nullptr,
                            .grad = grad.const_data_ptr(),
                            .grad_format = ops::format_of(grad.scalar_type(), "adamw_"),
                            .states = kind_of(moment1),
                            .moment1 = moment1.data_ptr(),
                            .moment2 = moment2.data_ptr(),
                            .scale1 = in_8_bits ? data_of(scale1) : nullptr,
                            .scale2 = in_8_bits ? data_of(scale2) : nullptr,
                            .seed = seed_of(static_cast<uint64_t>(seed), static_cast<uint64_t>(index)),
                            .count = parameter.numel(),
                            .lr = lr,
                            .beta1 = beta1,
                            .beta2 = beta2,
                            .eps = eps,
                            .weight_decay = weight_decay,
                            .step = step};
  TORCH_CHECK_NOT_IMPLEMENTED(parameter.device().is_cpu() || kernels::has_device_kernel(args), "adamw_: expected on ",
                              parameter.device(), " moments of float32, and a parameter of float32 or with a master");
  ops::on_device_of(parameter, [&](auto... stream) { kernels::adamw(args, stream...); });
}

// Tensors that the operator writes get another version: graphs that saved them, and what is kept of a weight, go by it.
void count_writes(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = arguments[i].alias_info();
    const c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    if (alias != nullptr && alias->isWrite() && value.isTensor()) written.push_back(value.toTensor());
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }
  for (const at::Tensor& tensor : written) tensor.unsafeGetTensorImpl()->bump_version();
}

void check_values(const char* op, const at::Tensor& tensor, std::initializer_list<at::ScalarType> dtypes) {
  const bool is_known = std::ranges::find(dtypes, tensor.scalar_type()) != dtypes.end();
  TORCH_CHECK(is_known && tensor.is_contiguous() && !tensor.is_neg(), op, ": expected a contiguous tensor of ",
              *dtypes.begin(), ", got ", tensor.scalar_type(), " ", tensor.sizes(), " with strides ", tensor.strides());
}

at::Tensor wide_moment_op(const at::Tensor& values, const std::optional<at::Tensor>& scale) {
  check_values("adamw_wide_moment", values, {at::kChar, at::kByte, at::kFloat, at::kBFloat16});
  const bool in_8_bits = values.scalar_type() == at::kChar || values.scalar_type() == at::kByte;
  TORCH_CHECK(scale.has_value() == in_8_bits,
              "adamw_wide_moment: expected a scale of an 8-bit moment, and of no other, got ", values.scalar_type());
  if (scale) check_scale("adamw_wide_moment", *scale, values.numel());
  const at::Tensor wide = wide_moment({values, scale.value_or(at::Tensor())});
  return wide.is_same(values) ? wide.clone() : wide;
}

std::tuple<at::Tensor, at::Tensor> codes_of_moment_op(const at::Tensor& moment, bool is_second) {
  check_values("adamw_codes_of_moment", moment, {at::kFloat});
  const KeptMoment kept = keep_moment(moment, StateKind::k8Bit, is_second ? Moment::kSecond : Moment::kFirst);
  return {kept.values, kept.scale};
}

at::Tensor join_weight_op(const at::Tensor& narrow, const at::Tensor& correction) {
  check_values("adamw_join_weight", narrow, {at::kBFloat16});
  check_values("adamw_join_weight", correction, {at::kChar});
  TORCH_CHECK(narrow.sizes() == correction.sizes(), "adamw_join_weight: expected a correction ", narrow.sizes(),
              ", got ", correction.sizes());
  return join_weight(narrow, correction);
}

at::Tensor correction_of_op(const at::Tensor& weight) {
  check_values("adamw_correction_of", weight, {at::kFloat});
  return correction_of(weight);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  // step: of this update, from 1. Moments fp32, bf16 (stochastic rounding, drawn by seed, index of the parameter, step and
  // element), or int8 and uint8 with a scale for 32 elements. master: the fp32 values of a bf16 or fp16 parameter, which
  // becomes their nearest. correction: of a split bf16 parameter. A bf16 one with neither is rounded stochastically.
  library.def(
      "adamw_(Tensor(a!) parameter, Tensor grad, Tensor(b!) moment1, Tensor(c!) moment2, *, int step, float lr, "
      "float beta1=0.9, float beta2=0.999, float eps=1e-08, float weight_decay=0.01, Tensor(d!)? master=None, "
      "Tensor(e!)? correction=None, Tensor(f!)? scale1=None, Tensor(g!)? scale2=None, int seed=0, int index=0) -> ()");
  // Conversions between the kinds of states, to nearest.
  library.def("adamw_wide_moment(Tensor values, *, Tensor? scale=None) -> Tensor");
  library.def("adamw_codes_of_moment(Tensor moment, *, bool is_second) -> (Tensor, Tensor)");
  library.def("adamw_join_weight(Tensor narrow, Tensor correction) -> Tensor");
  library.def("adamw_correction_of(Tensor weight) -> Tensor");
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) {
  library.impl("adamw_", &adamw_op);
  library.impl("adamw_wide_moment", &wide_moment_op);
  library.impl("adamw_codes_of_moment", &codes_of_moment_op);
  library.impl("adamw_join_weight", &join_weight_op);
  library.impl("adamw_correction_of", &correction_of_op);
}

TORCH_LIBRARY_IMPL(plimsoll, CUDA, library) { library.impl("adamw_", &adamw_op); }

TORCH_LIBRARY_IMPL(plimsoll, ADInplaceOrView, library) {
  library.impl("adamw_", torch::CppFunction::makeFromBoxedFunction<&count_writes>());
}

// Torch's fallback for views of negated memory cannot write through an argument: it ends the process.
TORCH_LIBRARY_IMPL(plimsoll, Negative, library) { library.impl("adamw_", torch::CppFunction::makeFallthrough()); }

}  // namespace plimsoll::optim
