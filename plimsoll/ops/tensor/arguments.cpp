#include "plimsoll/ops/tensor/arguments.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <vector>

#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::ops {

bool requires_grad(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

at::Tensor as_fp32(const at::Tensor& vector) {
  return vector.defined() ? vector.detach().to(at::kFloat).contiguous() : vector;
}

const float* data_or_null(const at::Tensor& fp32) { return fp32.defined() ? fp32.const_data_ptr<float>() : nullptr; }

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

at::Tensor empty_rows(at::IntArrayRef sizes, int64_t cols, const at::TensorOptions& options) {
  std::vector<int64_t> shape = sizes.vec();
  shape.back() = cols;
  return at::empty(shape, options);
}

void check_sizes(const at::Tensor& tensor, at::IntArrayRef sizes, const char* op, const char* name) {
  TORCH_CHECK(tensor.sizes() == sizes, op, ": expected ", name, " ", sizes, ", got ", tensor.sizes());
}

void check_same_device(const at::Tensor& x, const at::Tensor& other, const char* op, const char* name) {
  TORCH_CHECK(!other.defined() || other.device() == x.device(), op, ": expected ", name, " on ", x.device(),
              " as the others, got it on ", other.device());
}

void check_one_device(const char* op, std::initializer_list<OptionalOperand> operands) {
  const at::Device device = operands.begin()->tensor->device();
  for (const OptionalOperand& operand : operands) {
    if (operand.tensor == nullptr || !operand.tensor->defined()) continue;
    TORCH_CHECK(operand.tensor->device() == device, op, ": expected all operands on the ", device,
                " as the first, got one on the ", operand.tensor->device());
  }
}

void check_linear(const LinearNames& names, const at::Tensor& x, int64_t in, const at::Tensor& weight,
                  const at::Tensor& bias) {
  check_device_values(weight, names.op, "weight");
  check_same_device(x, weight, names.op, "weight");
  TORCH_CHECK(weight.dim() == 2 && weight.size(1) == in, names.op, ": expected ", names.layer, "weight [out, ", in,
              "], got ", weight.sizes());
  if (!bias.defined()) return;
  check_device_values(bias, names.op, "bias");
  check_same_device(x, bias, names.op, "bias");
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == weight.size(0), names.op, ": expected ", names.layer, "bias [",
              weight.size(0), "], got ", bias.sizes());
}

void check_once_differentiable(const char* op) {
  TORCH_CHECK(!at::GradMode::is_enabled(), op, ": expected a backward pass without create_graph, got one with it");
}

}  // namespace plimsoll::ops
