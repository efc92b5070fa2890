#include "plimsoll/ops/tensor/quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/kernels/quantize/block_scale.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_cuda.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/ops/tensor/transposed.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

kernels::QuantizeTensor tensor_pass(const at::Tensor& x, at::Tensor* sum) {
  if (sum != nullptr) *sum = at::empty({x.size(1)}, x.options().dtype(at::kFloat));
  return {.x = x.const_data_ptr(),
          .x_format = format_of(x.scalar_type(), "quantize"),
          .rows = x.size(0),
          .cols = x.size(1),
          .x_stride = x.stride(0),
          .codes_stride = x.size(1),
          .column_sum = sum == nullptr ? nullptr : sum->mutable_data_ptr<float>()};
}

// Memory for a statistic where the options ask for one; nullptr otherwise.
kernels::QuantizeStatistic* wanted_statistic(const at::Tensor& x, const QuantizeOptions& options,
                                             at::Tensor& statistic) {
  if (!options.measures) return nullptr;
  statistic = statistic_memory(x);
  return as_statistic(statistic);
}

Quantized quantize_tensor(const at::Tensor& x, const QuantizeOptions& options, at::Tensor* sum) {
  at::Tensor codes = at::empty(x.sizes(), x.options().dtype(at::kByte));
  const AmaxSlot amax(x.device());
  kernels::QuantizeTensor pass = tensor_pass(x, sum);
  pass.codes = codes.mutable_data_ptr<uint8_t>();
  pass.format = options.format;
  pass.scale = options.scale.data();
  pass.amax = amax.data();
  at::Tensor statistic;
  pass.statistic = wanted_statistic(x, options, statistic);
  const watch::Span span("quantize", {.bytes = traffic(x, codes)});
  on_device_of(x, [&](auto... stream) { kernels::quantize_tensor(pass, stream...); });
  return {scaled_codes(std::move(codes), options.format, options.scale), amax, statistic};
}

void check_blocks(const at::Tensor& x, const kernels::QuantizeBlocks& args) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      x.device().is_cpu() || kernels::has_device_kernel(args), "quantize: expected on ", x.device(),
      " one FP32 scale, or one for rows, 1 x 128, 128 x 1, 1 x 32, 32 x 1 or 128 x 128, got blocks of ",
      args.block_rows, " x ", args.block_cols);
}

constexpr int kOneAsE8m0 = 127;
constexpr int64_t kColumnBlock = 128;

Quantized quantize_blocks(const at::Tensor& x, const QuantizeOptions& options);

// By way of the transpose, of whose blocks there is a kernel.
Quantized quantize_turned(const at::Tensor& x, const QuantizeOptions& options) {
  QuantizeOptions turned = options;
  turned.granularity = {options.granularity.block_cols, options.granularity.block_rows};
  Quantized result = quantize_blocks(transposed(x), turned);
  result.tensor.data = transposed(result.tensor.data);
  result.tensor.scale = result.tensor.scale.t().contiguous();
  result.tensor.granularity = options.granularity;
  return result;
}

Quantized quantize_blocks(const at::Tensor& x, const QuantizeOptions& options) {
  if (x.is_cuda() && options.granularity == recipe::Granularity{kColumnBlock, 1}) return quantize_turned(x, options);
  const int64_t rows = x.size(0), cols = x.size(1);
  const bool exponents = options.scale_format == format::Format::kE8m0;
  ScaledTensor tensor{.data = at::empty(x.sizes(), x.options().dtype(at::kByte)),
                      .scale = at::empty(scale_shape(options.granularity, rows, cols),
                                         x.options().dtype(exponents ? at::kByte : at::kFloat)),
                      .format = options.format,
                      .granularity = options.granularity,
                      .scale_format = options.scale_format};
  if (x.numel() == 0) tensor.scale.fill_(exponents ? kOneAsE8m0 : 1);  // the kernel has no block to visit
  AmaxSlot amax(x.device());
  at::Tensor statistic;
  kernels::QuantizeStatistic* const measured = wanted_statistic(x, options, statistic);
  const watch::Span span("quantize blocks", {.bytes = traffic(x, tensor.data, tensor.scale)});
  const kernels::QuantizeBlocks args{.x = x.const_data_ptr(),
                                     .x_format = format_of(x.scalar_type(), "quantize"),
                                     .rows = rows,
                                     .cols = cols,
                                     .x_stride = x.stride(0),
                                     .codes = tensor.data.mutable_data_ptr<uint8_t>(),
                                     .format = options.format,
                                     .codes_stride = cols,
                                     .block_rows = options.granularity.block_rows,
                                     .block_cols = options.granularity.block_cols,
                                     .scale = tensor.scale.mutable_data_ptr(),
                                     .scale_format = options.scale_format,
                                     .scale_stride = tensor.scale.size(1),
                                     .power_of_two = options.power_of_two,
                                     .rounding = options.rounding,
                                     .amax = amax.data(),
                                     .statistic = measured};
  check_blocks(x, args);
  on_device_of(x, [&](auto... stream) { kernels::quantize_blocks(args, stream...); });
  return {std::move(tensor), std::move(amax), std::move(statistic)};
}

}  // namespace

constexpr int64_t kStatisticNumbers = sizeof(kernels::QuantizeStatistic) / sizeof(float);

at::Tensor statistic_memory(const at::Tensor& x) {
  return at::empty({kStatisticNumbers}, x.options().dtype(at::kFloat));
}

kernels::QuantizeStatistic* as_statistic(const at::Tensor& memory) {
  return reinterpret_cast<kernels::QuantizeStatistic*>(memory.mutable_data_ptr<float>());
}

// Rows may be strided, elements of a row may not.
at::Tensor with_dense_rows(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "quantize: expected a matrix, got ", x.sizes());
  const bool dense = x.size(1) <= 1 || x.stride(1) == 1;
  const bool apart = x.size(0) <= 1 || x.stride(0) >= x.size(1);
  return dense && apart ? x : x.contiguous();
}

QuantizeOptions quantize_options(const recipe::OperandRecipe& stored, const ScaleRef& scale) {
  return {.format = stored.format,
          .granularity = stored.granularity,
          .scale_format = stored.scale_format,
          .power_of_two = stored.power_of_two,
          .rounding = stored.rounding,
          .scale = stored.granularity == recipe::kPerTensor ? scale : ScaleRef()};
}

Quantized quantize(const at::Tensor& x, const QuantizeOptions& options, at::Tensor* column_sum_out) {
  TORCH_CHECK_NOT_IMPLEMENTED(!(options.measures && x.is_cuda()),
                              "quantize: expected no measuring of what codes lose on ", x.device());
  TORCH_CHECK(format::is_fp8(options.format), "quantize: expected format e4m3 or e5m2, got ",
              format::info(options.format).name);
  const at::Tensor dense = with_dense_rows(x);
  if (options.scale.defined()) {
    TORCH_CHECK(options.granularity == recipe::kPerTensor, "quantize: expected no given scale with blocks of ",
                options.granularity.block_rows, " x ", options.granularity.block_cols);
    if (dense.device().is_cpu()) return quantize_tensor(dense, options, column_sum_out);
    if (column_sum_out != nullptr) *column_sum_out = column_sum(dense);
    return quantize_tensor(dense, options, nullptr);
  }
  if (column_sum_out != nullptr) *column_sum_out = column_sum(dense);
  if (dense.is_cuda() && options.granularity == recipe::kPerTensor && options.scale_format == format::Format::kFp32) {
    QuantizeOptions by_scale = options;  // its kernel takes the scale, found on the device, too
    by_scale.scale = tensor_scale(options, find_amax(dense));
    return quantize_tensor(dense, by_scale, nullptr);
  }
  return quantize_blocks(dense, options);
}

ScaleRef tensor_scale(const QuantizeOptions& options, const AmaxSlot& amax) {
  const at::Tensor scale = at::empty({1, 1}, amax.memory().options());
  const kernels::TensorScale args{.amax = amax.data(),
                                  .scale = scale.mutable_data_ptr<float>(),
                                  .max_finite = format::max_finite(options.format),
                                  .power_of_two = options.power_of_two};
  on_device_of(scale, [&](auto... stream) { kernels::set_tensor_scale(args, stream...); });
  return ScaleRef(scale);
}

ScaledTensor scaled_codes(at::Tensor codes, format::Format format, const ScaleRef& scale) {
  return {.data = std::move(codes), .scale = scale.memory(), .format = format};
}

AmaxSlot find_amax(const at::Tensor& x) {
  AmaxSlot result(x.device());
  find_amax(x, result);
  return result;
}

void find_amax(const at::Tensor& x, const AmaxSlot& result) {
  const at::Tensor dense = with_dense_rows(x);
  const watch::Span span("amax", {.bytes = traffic(x)});
  const kernels::Amax args{.x = dense.const_data_ptr(),
                           .x_format = format_of(x.scalar_type(), "amax"),
                           .rows = dense.size(0),
                           .cols = dense.size(1),
                           .x_stride = dense.stride(0),
                           .amax = result.data()};
  on_device_of(x, [&](auto... stream) { kernels::amax(args, stream...); });
}

float amax(const at::Tensor& x) { return find_amax(x).read_on_host(); }

at::Tensor column_sum(const at::Tensor& x) {
  if (x.is_cuda()) return at::sum(x, 0, /*keepdim=*/false, at::kFloat);
  at::Tensor sum;
  const at::Tensor dense = with_dense_rows(x);
  const watch::Span span("column sum", {.bytes = traffic(x)});
  kernels::quantize_tensor(tensor_pass(dense, &sum));
  return sum;
}

}  // namespace plimsoll::ops
