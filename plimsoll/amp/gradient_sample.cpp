#include "plimsoll/amp/gradient_sample.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <map>

#include "plimsoll/kernels/gradient/gradient_cuda.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/read_together.h"
#include "plimsoll/ops/torch_internals/sparse_entries.h"

namespace plimsoll::amp {
namespace {

constexpr int64_t kSample = int64_t{1} << 16;  // elements: a share of 2^-10 is 64 of them
constexpr int64_t kRun = kernels::kGradientSampleRun;

// Neighbours are of a size: four histograms, so that one does not wait for the other's count.
using Lanes = std::array<GradientHistogram, 4>;

void count(Lanes& lanes, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffff;
    lanes[static_cast<size_t>(i) % lanes.size()].counts[magnitude >> 23] += magnitude != 0;
  }
}

// One run of each `stride` runs.
void sample(Lanes& lanes, const at::Tensor& grad, int64_t stride) {
  const float* x = grad.const_data_ptr<float>();
  for (int64_t begin = 0; begin < grad.numel(); begin += stride * kRun) {
    count(lanes, x + begin, std::min(kRun, grad.numel() - begin));
  }
}

// Counts of the sample of tensors on one CUDA device.
at::Tensor queue_counts(const std::vector<at::Tensor>& values, int64_t stride) {
  std::vector<kernels::GradientTensor> tensors;
  for (const at::Tensor& each : values) {
    tensors.push_back(
        {.data = each.data_ptr(), .format = ops::format_of(each.scalar_type(), "unscale_"), .count = each.numel()});
  }
  const at::Tensor counts = at::zeros({kernels::kGradientBins}, values.front().options().dtype(at::kInt));
  ops::on_stream_of(counts, [&](const kernels::cuda::Stream& stream) {
    kernels::gradient_histogram({.tensors = tensors.data(),
                                 .tensor_count = tensors.size(),
                                 .stride = stride,
                                 .counts = counts.data_ptr<int32_t>()},
                                stream);
  });
  return counts;
}

}  // namespace

GradientSample::GradientSample(at::TensorList grads) {
  int64_t elements = 0;
  for (const at::Tensor& grad : grads) elements += grad.is_sparse() ? ops::entries_of(grad).numel() : grad.numel();
  const int64_t stride = std::max<int64_t>(1, elements / kSample);
  Lanes lanes = {};
  std::map<c10::DeviceIndex, std::vector<at::Tensor>> on_devices;
  for (const at::Tensor& grad : grads) {
    const at::Tensor values = grad.is_sparse() ? ops::entries_of(grad) : grad;
    // The order of elements is of no interest, so what is dense in any order is read as it lies.
    const at::Tensor dense = values.is_non_overlapping_and_dense() ? values : values.contiguous();
    if (!values.is_cuda()) {
      sample(lanes, dense.to(at::kFloat), stride);
    } else {
      const bool is_double = dense.scalar_type() == at::kDouble;
      on_devices[dense.device().index()].push_back(is_double ? dense.to(at::kFloat) : dense);
    }
  }
  for (const GradientHistogram& lane : lanes) histogram_ += lane;
  histogram_.counts[255] = 0;  // Inf and NaN
  for (const auto& [device, values] : on_devices) device_counts_.push_back(queue_counts(values, stride));
}

GradientHistogram GradientSample::histogram(at::TensorList host_counts) const {
  GradientHistogram result = histogram_;
  for (const at::Tensor& counts : host_counts) {
    const int32_t* const of_device = counts.const_data_ptr<int32_t>();
    for (size_t i = 0; i < result.counts.size(); ++i) result.counts[i] += of_device[i];
  }
  return result;
}

GradientHistogram gradient_histogram(at::TensorList grads) {
  const GradientSample sample(grads);
  return sample.histogram(ops::read_together(sample.device_counts()));
}

}  // namespace plimsoll::amp
