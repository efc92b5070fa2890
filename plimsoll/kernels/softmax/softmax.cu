// Softmax on a CUDA device. What an element becomes stands in softmax_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/cuda/elements.cuh"
#include "plimsoll/kernels/cuda/row_sum.cuh"
#include "plimsoll/kernels/lane_order.h"
#include "plimsoll/kernels/softmax/softmax_element.h"
#include "plimsoll/kernels/softmax/softmax_launch.h"

namespace plimsoll::kernels {
namespace {

constexpr int kRun = kSoftmaxRun;

__device__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// A float as an integer of the same order; of NaN none is asked.
__device__ int32_t ordered(float x) {
  const int32_t bits = __float_as_int(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// One row. It is read three times, from caches but for the first.
template <Format kFormat>
struct SoftmaxRow {
  const SoftmaxForward& args;
  int64_t offset;       // of its first element
  int64_t keys;         // that the causal rule leaves
  const uint8_t* mask;  // of this row, or nullptr

  __device__ static SoftmaxRow at(const SoftmaxForward& args, int64_t row) {
    const SoftmaxShape& shape = args.shape;
    const int64_t query = row % shape.queries, head = row / shape.queries % shape.heads;
    const int64_t batch = row / shape.queries / shape.heads;
    int64_t keys = shape.keys;
    if (args.causal != Causal::kNone) {
      const int64_t seen = query + 1 + causal_offset(args.causal, shape.queries, shape.keys);
      keys = seen < 0 ? 0 : seen < shape.keys ? seen : shape.keys;
    }
    const int64_t mask = batch * args.mask_batch_stride + head * args.mask_head_stride + query * args.mask_query_stride;
    return {args, row * shape.keys, keys, args.mask != nullptr ? args.mask + mask : nullptr};
  }

  __device__ bool is_masked(int64_t key) const { return mask != nullptr && mask[key] != 0; }
  __device__ float logit(int64_t key) const {
    return is_masked(key) ? minus_infinity() : load<kFormat>(args.x, offset + key) * args.scale;
  }

  struct Seen {
    float top;     // the largest logit
    bool visible;  // whether the mask leaves a place
  };
  __device__ Seen find_top() const {
    float top = minus_infinity();
    int32_t visible = mask == nullptr;
    for (int64_t key = threadIdx.x; key < keys; key += kSoftmaxThreads) {
      top = larger_logit(logit(key), top);
      visible |= !is_masked(key);
    }
    const int32_t largest = block_max<kSoftmaxThreads>(ordered(top));
    visible = block_max<kSoftmaxThreads>(visible);
    return {__int_as_float(largest < 0 ? largest ^ 0x7fffffff : largest), visible != 0};
  }

  // y = factor e^(logit - top), and 0 for keys that are not seen.
  __device__ void write(float top, float factor, bool visible) const {
    auto* y = static_cast<Element<kFormat>*>(args.y) + offset;
    const bool aligned = is_aligned(y, 0, kRun);
    for (int64_t key = threadIdx.x * kRun; key < args.shape.keys; key += kSoftmaxThreads * kRun) {
      float value[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        value[i] = visible && key + i < keys ? exp_clamped_of(logit(key + i) - top) * factor : 0.0f;
      }
      const int64_t count = args.shape.keys - key;
      store_run<kFormat, kRun>(y + key, count, count >= kRun && aligned, value);
    }
  }
};

template <Format kFormat>
__device__ void softmax_forward(const SoftmaxForward& args) {
  const int64_t rows = args.shape.batch * args.shape.heads * args.shape.queries;
  for (int64_t index = blockIdx.x; index < rows; index += gridDim.x) {
    const auto row = SoftmaxRow<kFormat>::at(args, index);
    const auto [top, visible] = row.find_top();
    float factor = 0;
    if (visible) {
      factor = 1.0f / row_sum<kSoftmaxThreads>(row.keys, [&](int64_t place, float sum) {
                 return sum + exp_clamped_of(row.logit(element_at_place(kFormat, place, row.keys)) - top);
               });
    }
    row.write(top, factor, visible);
  }
}

}  // namespace

#define PLIMSOLL_KERNEL(x, kX)                                           \
  extern "C" __global__ void __launch_bounds__(kSoftmaxThreads)          \
      softmax_forward_##x(const __grid_constant__ SoftmaxForward args) { \
    softmax_forward<Format::kX>(args);                                   \
  }

PLIMSOLL_KERNEL(fp32, kFp32)
PLIMSOLL_KERNEL(bf16, kBf16)
PLIMSOLL_KERNEL(fp16, kFp16)

}  // namespace plimsoll::kernels
