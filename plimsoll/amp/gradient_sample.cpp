#include "plimsoll/amp/gradient_sample.h"

#include <algorithm>
#include <bit>

#include "plimsoll/ops/torch_internals/sparse_entries.h"

namespace plimsoll::amp {
namespace {

constexpr int64_t kSample = int64_t{1} << 16;  // elements: a share of 2^-10 is 64 of them
constexpr int64_t kRun = 64;                   // elements side by side, four cache lines

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

}  // namespace

GradientHistogram gradient_histogram(at::TensorList grads) {
  int64_t elements = 0;
  for (const at::Tensor& grad : grads) elements += grad.is_sparse() ? ops::entries_of(grad).numel() : grad.numel();
  const int64_t stride = std::max<int64_t>(1, elements / kSample);
  Lanes lanes = {};
  for (const at::Tensor& grad : grads) {
    const at::Tensor values = grad.is_sparse() ? ops::entries_of(grad) : grad;
    // The order of elements is of no interest, so what is dense in any order is read as it lies.
    const bool as_it_lies = values.scalar_type() == at::kFloat && values.is_non_overlapping_and_dense();
    sample(lanes, as_it_lies ? values : values.to(at::kFloat).contiguous(), stride);
  }
  GradientHistogram histogram;
  for (const GradientHistogram& lane : lanes) histogram += lane;
  histogram.counts[255] = 0;  // Inf and NaN
  return histogram;
}

}  // namespace plimsoll::amp
