#include "plimsoll/ops/tensor/device_product.h"

#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <optional>

#include "plimsoll/kernels/quantize/quantize_cuda.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/transposed.h"
#include "plimsoll/ops/torch_internals/scaled_product.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;

// Torch's product wants multiples of this along k and n.
constexpr int64_t kStep = 16;

struct DeviceOperand {
  const ScaledTensor& tensor;
  bool turned;  // the product reads the transpose of what is stored

  int64_t rows() const { return turned ? tensor.cols() : tensor.rows(); }
  int64_t k() const { return turned ? tensor.rows() : tensor.cols(); }
};

DeviceOperand operand_a(const Product& product) { return {product.a, product.kind == GemmKind::kGradWeight}; }
DeviceOperand operand_b(const Product& product) { return {product.b, product.kind != GemmKind::kOutput}; }

at::ScalarType code_dtype(format::Format format) {
  return format == format::Format::kE4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

// Codes as [rows, k], row by row.
at::Tensor codes_by_rows(const DeviceOperand& operand) {
  const at::Tensor& data = operand.tensor.data;
  return (operand.turned ? transposed(data) : data).view(code_dtype(operand.tensor.format));
}

enum class Scaling { kTensor, kRows, kOther };

Scaling scaling_of(const DeviceOperand& operand) {
  const ScaledTensor& tensor = operand.tensor;
  if (tensor.scale_format != format::Format::kFp32) return Scaling::kOther;
  if (!tensor.scale.defined() || tensor.granularity == recipe::kPerTensor) return Scaling::kTensor;
  return tensor.granularity == recipe::kPerRow && !operand.turned ? Scaling::kRows : Scaling::kOther;
}

at::Tensor one_scale(const ScaledTensor& tensor) {
  return tensor.scale.defined() ? tensor.scale.view(at::IntArrayRef())
                                : at::ones({}, tensor.data.options().dtype(at::kFloat));
}

// fp32 [rows].
at::Tensor row_scales(const DeviceOperand& operand) {
  return scaling_of(operand) == Scaling::kRows ? operand.tensor.scale.view({operand.rows()})
                                               : one_scale(operand.tensor).expand({operand.rows()}).contiguous();
}

bool multiplies_codes(const DeviceOperand& a, const DeviceOperand& b) {
  const format::Format first = a.tensor.format, second = b.tensor.format;
  const bool known = format::is_fp8(first) && format::is_fp8(second) &&
                     (first == format::Format::kE4m3 || second == format::Format::kE4m3);
  return known && scaling_of(a) != Scaling::kOther && scaling_of(b) != Scaling::kOther && a.k() % kStep == 0 &&
         b.rows() % kStep == 0 && a.rows() > 0 && b.rows() > 0 && a.k() > 0;
}

void multiply_codes(const DeviceOperand& a, const DeviceOperand& b, const at::Tensor& bias, at::Tensor& output) {
  const bool one_each = scaling_of(a) == Scaling::kTensor && scaling_of(b) == Scaling::kTensor;
  scaled_product(output, codes_by_rows(a), codes_by_rows(b),
                 one_each ? one_scale(a.tensor) : row_scales(a).view({a.rows(), 1}),
                 one_each ? one_scale(b.tensor) : row_scales(b).view({1, b.rows()}), bias);
}

// A format that holds the values of both exactly: E4M3 and E5M2 times a power of two are numbers of BF16.
at::ScalarType common_dtype(const ScaledTensor& a, const ScaledTensor& b) {
  if (!a.has_codes() && !b.has_codes() && a.format == b.format) return dtype_of(a.format);
  for (const ScaledTensor* tensor : {&a, &b}) {
    const bool fits =
        tensor->has_codes() ? tensor->scale_format == format::Format::kE8m0 : tensor->format == format::Format::kBf16;
    if (!fits) return at::kFloat;
  }
  return at::kBFloat16;
}

at::Tensor values_of(const DeviceOperand& operand, at::ScalarType dtype) {
  const ScaledTensor& tensor = operand.tensor;
  const at::Tensor values = tensor.has_codes() ? dequantize(tensor, dtype) : tensor.data.to(dtype);
  return operand.turned ? values.t() : values;
}

// FP32 sums, rounded once to the dtype of output, which is that of the operands or FP32.
void multiply_values(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, at::Tensor& output) {
  if (bias.defined()) {
    at::addmm_out(output, bias, a, b.t());
  } else if (output.scalar_type() == a.scalar_type()) {
    at::mm_out(output, a, b.t());
  } else {
    at::mm_out(output, a, b.t(), output.scalar_type());
  }
}

// bias: in the dtype of output, or undefined.
void multiply_plainly(const DeviceOperand& a, const DeviceOperand& b, const at::Tensor& bias, at::Tensor& output) {
  if (multiplies_codes(a, b)) return multiply_codes(a, b, bias, output);
  const at::ScalarType dtype = common_dtype(a.tensor, b.tensor);
  multiply_values(values_of(a, dtype), values_of(b, dtype), bias, output);
}

// Whether the product itself writes numbers of this dtype.
bool writes(const DeviceOperand& a, const DeviceOperand& b, at::ScalarType dtype) {
  return dtype == at::kFloat || (dtype != at::kByte && multiplies_codes(a, b)) ||
         (!multiplies_codes(a, b) && dtype == common_dtype(a.tensor, b.tensor));
}

// The epilogue of gemm.h on sums in FP32.
void finish(at::Tensor sums, const Product& product, at::Tensor& output, format::Format codes) {
  const kernels::GemmEpilogue& epilogue = product.epilogue;
  std::optional<at::Tensor> bias;
  if (epilogue.bias != nullptr) {
    bias = at::from_blob(const_cast<float*>(epilogue.bias), {output.size(1)}, sums.options());
  }
  const bool is_last = !epilogue.accumulate && !product.amax.defined() && output.scalar_type() != at::kByte;
  if (epilogue.alpha != 1) sums.mul_(epilogue.alpha);
  if (bias && is_last) {
    at::add_out(output, sums, *bias);
    return;
  }
  if (bias) sums.add_(*bias);
  if (epilogue.accumulate && output.scalar_type() == at::kFloat && !product.amax.defined()) {
    output.add_(sums);
    return;
  }
  if (epilogue.accumulate) sums.add_(output);
  if (output.scalar_type() == at::kByte) {
    on_stream_of(sums, [&](const kernels::cuda::Stream& stream) {
      kernels::quantize_tensor({.x = sums.const_data_ptr(),
                                .rows = sums.size(0),
                                .cols = sums.size(1),
                                .x_stride = sums.size(1),
                                .codes = output.mutable_data_ptr<uint8_t>(),
                                .format = codes,
                                .codes_stride = sums.size(1),
                                .scale = product.scale.data(),
                                .amax = product.amax.data()},
                               stream);
    });
    return;
  }
  if (product.amax.defined()) find_amax(sums, product.amax);
  output.copy_(sums);
}

}  // namespace

void multiply_on_device(const Product& product, const at::Tensor& output, format::Format codes) {
  const kernels::GemmEpilogue& epilogue = product.epilogue;
  TORCH_INTERNAL_ASSERT(epilogue.activation == kernels::GemmActivation::kNone && epilogue.column_sum == nullptr);
  const DeviceOperand a = operand_a(product), b = operand_b(product);
  TORCH_INTERNAL_ASSERT(a.k() == b.k() && output.numel() == a.rows() * b.rows() && output.is_contiguous());
  at::Tensor matrix = output.view({a.rows(), b.rows()});
  const at::Tensor& bias = product.narrow_bias;
  const bool takes_bias = epilogue.bias == nullptr || (bias.defined() && bias.scalar_type() == output.scalar_type() &&
                                                       output.scalar_type() != at::kFloat);
  const bool is_plain = epilogue.alpha == 1 && takes_bias && !epilogue.accumulate && !product.amax.defined() &&
                        writes(a, b, output.scalar_type());
  if (is_plain) return multiply_plainly(a, b, bias, matrix);
  at::Tensor sums = at::empty({a.rows(), b.rows()}, output.options().dtype(at::kFloat));
  multiply_plainly(a, b, {}, sums);
  finish(std::move(sums), product, matrix, codes);
}

}  // namespace plimsoll::ops
