#include "plimsoll/amp/unscale.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "plimsoll/amp/gradient_sample.h"
#include "plimsoll/kernels/gradient/gradient_cuda.h"
#include "plimsoll/ops/optimizer/scaled_optimizer.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/read_together.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/ops/torch_internals/sparse_entries.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::amp {
namespace {

// The elements of one gradient as the kernel takes them.
struct Elements {
  at::Tensor grad;     // dense: the gradient itself, or the values of a sparse one
  at::Tensor dense;    // grad in storage order without gaps; a copy where grad has gaps or overlaps
  at::Tensor entries;  // of a sparse gradient that may have several for one place: itself; otherwise undefined
  bool copied() const { return !dense.is_alias_of(grad); }
  // The kernel takes one element a place, and no fp64.
  bool suits_kernel() const { return !entries.defined() && dense.scalar_type() != at::kDouble; }
};

Elements elements_of(const at::Tensor& grad) {
  TORCH_CHECK(grad.device().is_cpu() || grad.device().is_cuda(),
              "unscale_: expected gradients on the CPU or on CUDA devices, got one on ", grad.device());
  const at::Tensor values = grad.is_sparse() ? ops::entries_of(grad) : grad;
  return {.grad = values,
          .dense = values.is_non_overlapping_and_dense() ? values : values.contiguous(),
          .entries = grad.is_sparse() && !grad.is_coalesced() ? grad : at::Tensor()};
}

at::Tensor unrounded(const at::Tensor& dense, float scale) {
  return (dense.scalar_type() == at::kDouble ? dense : dense.to(at::kFloat)) * static_cast<double>(scale);
}

// Adds one gradient that the kernel does not know, scaled, to the summary.
void measure_apart(const Elements& elements, const at::Tensor& scaled, int64_t index,
                   kernels::GradientSummary& summary) {
  const int64_t non_finite = scaled.numel() - at::isfinite(scaled).sum().item<int64_t>();
  if (non_finite > 0 && (summary.first_non_finite < 0 || index < summary.first_non_finite)) {
    summary.first_non_finite = index;
  }
  summary.non_finite += non_finite;
  const at::Tensor sums =
      elements.entries.defined() ? ops::sums_of_places(elements.entries, scaled.to(at::kDouble)) : scaled;
  summary.sum_of_squares += sums.to(at::kDouble).square().sum().item<double>();
}

// Gradients of one device that the kernel knows.
class DeviceGradients {
 public:
  explicit DeviceGradients(at::Device device) : device_(device) {}

  at::Device device() const { return device_; }
  double bytes() const { return bytes_; }
  void add(const at::Tensor& dense, int64_t place) {
    bytes_ += ops::traffic(dense);
    tensors_.push_back(
        {.data = dense.data_ptr(), .format = ops::format_of(dense.scalar_type(), "unscale_"), .count = dense.numel()});
    places_.push_back(place);
  }

  // Queues the pass on a CUDA device, and returns what the host is to read of it; on the CPU there is nothing.
  at::Tensor queue(float scale, bool write) const {
    if (device_.is_cpu()) return {};
    const kernels::GradientPass args = pass(scale, write);
    const kernels::GradientMemory bytes = kernels::gradient_memory(args);
    const at::Tensor memory =
        at::empty({bytes.findings + bytes.scratch}, at::TensorOptions().device(device_).dtype(at::kByte));
    ops::on_stream_of(
        memory, [&](const kernels::cuda::Stream& stream) { kernels::gradient_pass(args, memory.data_ptr(), stream); });
    return memory.narrow(0, 0, bytes.findings);
  }

  // The summary of a pass, with places among all gradients. findings: what was read, of a CUDA device.
  kernels::GradientSummary summary(float scale, bool write, const at::Tensor& findings) const {
    const kernels::GradientPass args = pass(scale, write);
    kernels::GradientSummary result =
        device_.is_cpu() ? kernels::gradient_pass(args) : kernels::gradient_summary(args, findings.const_data_ptr());
    if (result.first_non_finite >= 0) result.first_non_finite = places_[static_cast<size_t>(result.first_non_finite)];
    return result;
  }

  void scale(float factor) const {
    const kernels::GradientPass args = pass(factor, /*write=*/true);
    if (device_.is_cpu()) {
      kernels::gradient_pass(args);
      return;
    }
    const c10::DeviceGuard guard(device_);
    kernels::gradient_pass(args, /*memory=*/nullptr, ops::device_stream(device_));
  }

 private:
  kernels::GradientPass pass(float scale, bool write) const {
    return {.tensors = tensors_.data(), .tensor_count = tensors_.size(), .scale = scale, .write = write};
  }

  at::Device device_;
  std::vector<kernels::GradientTensor> tensors_;
  std::vector<int64_t> places_;  // among all gradients
  double bytes_ = 0;
};

struct Pass {
  kernels::GradientSummary summary;
  GradientHistogram histogram;  // of the gradients before it
};

class Gradients {
 public:
  explicit Gradients(at::TensorList grads) : given_(grads) {
    for (const at::Tensor& grad : grads) {
      const Elements elements = elements_of(grad);
      const auto index = static_cast<int64_t>(all_.size());
      all_.push_back(elements);
      if (elements.suits_kernel()) {
        on(elements.dense.device()).add(elements.dense, index);
      } else {
        apart_.push_back(index);
      }
    }
  }

  // Waits for each CUDA device once, and for gradients there that the kernel does not know.
  Pass pass(float scale, bool write) const {
    const watch::Span span("unscale", {.bytes = write ? 2 * bytes() : bytes()});
    const GradientSample sample(given_);
    std::vector<at::Tensor> found = sample.device_counts();
    const auto counts = static_cast<std::ptrdiff_t>(found.size());
    for (const DeviceGradients& each : devices_) {
      if (const at::Tensor findings = each.queue(scale, write); findings.defined()) found.push_back(findings);
    }
    found = ops::read_together(found);
    Pass result{.summary = {},
                .histogram = sample.histogram(at::TensorList(found.data(), static_cast<size_t>(counts)))};
    auto next = found.begin() + counts;
    for (const DeviceGradients& each : devices_) {
      add(each.summary(scale, write, each.device().is_cpu() ? at::Tensor() : *next++), result.summary);
    }
    for (const int64_t index : apart_) {
      const Elements& elements = all_[static_cast<size_t>(index)];
      const at::Tensor scaled = unrounded(elements.dense, scale);
      measure_apart(elements, scaled, index, result.summary);
      if (write) elements.dense.copy_(scaled);
    }
    if (write) copy_back();
    return result;
  }

  // Queues the same on CUDA devices and waits for none.
  void scale(float factor) const {
    const watch::Span span("unscale", {.bytes = 2 * bytes()});
    for (const DeviceGradients& each : devices_) each.scale(factor);
    for (const int64_t index : apart_) {
      const at::Tensor& dense = all_[static_cast<size_t>(index)].dense;
      dense.copy_(unrounded(dense, factor));
    }
    copy_back();
  }

 private:
  DeviceGradients& on(at::Device device) {
    const auto found = std::ranges::find(devices_, device, &DeviceGradients::device);
    return found != devices_.end() ? *found : devices_.emplace_back(device);
  }
  double bytes() const {
    double sum = 0;
    for (const DeviceGradients& each : devices_) sum += each.bytes();
    return sum;
  }
  static void add(const kernels::GradientSummary& one, kernels::GradientSummary& sum) {
    sum.sum_of_squares += one.sum_of_squares;
    sum.non_finite += one.non_finite;
    const int64_t first = one.first_non_finite;
    if (first >= 0 && (sum.first_non_finite < 0 || first < sum.first_non_finite)) sum.first_non_finite = first;
  }
  void copy_back() const {
    for (const Elements& elements : all_) {
      if (elements.copied()) elements.grad.copy_(elements.dense);
    }
  }

  at::TensorList given_;
  std::vector<Elements> all_;
  std::vector<DeviceGradients> devices_;
  std::vector<int64_t> apart_;  // places of those that the kernel does not know
};

// The summary of gradients whose scale is lost: none of their elements can be known.
UnscaleSummary nothing_finite(at::TensorList grads) {
  const Pass seen = Gradients(grads).pass(1, /*write=*/false);
  UnscaleSummary summary{.grad_norm = std::numeric_limits<double>::infinity(), .histogram = seen.histogram};
  for (const at::Tensor& grad : grads) summary.non_finite += elements_of(grad).grad.numel();
  const int64_t first = seen.summary.first_non_finite;
  summary.first_non_finite = first >= 0 || summary.non_finite == 0 ? first : 0;
  return summary;
}

}  // namespace

UnscaleSummary unscale_gradients_(at::TensorList grads, const UnscaleOptions& options) {
  const at::NoGradGuard no_grad;
  if (!std::isfinite(options.inv_scale)) return nothing_finite(grads);
  const Gradients gradients(grads);
  const bool clips = std::isfinite(options.max_norm);
  const bool writes = options.inv_scale != 1 && !(clips && options.expect_clip);
  const Pass pass = gradients.pass(options.inv_scale, writes);
  const kernels::GradientSummary& seen = pass.summary;
  UnscaleSummary summary{.grad_norm = std::sqrt(seen.sum_of_squares),
                         .non_finite = seen.non_finite,
                         .first_non_finite = seen.first_non_finite,
                         .histogram = pass.histogram};
  if (clips && seen.non_finite == 0) summary.clip_factor = ops::clip_factor(options.max_norm, summary.grad_norm);
  const auto left = static_cast<float>((writes ? 1 : options.inv_scale) * summary.clip_factor);
  if (left != 1) gradients.scale(left);
  return summary;
}

}  // namespace plimsoll::amp
