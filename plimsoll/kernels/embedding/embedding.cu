// Embedding on a CUDA device. Sums are in the CPU's order.
#include "plimsoll/kernels/cuda/any_run.cuh"
#include "plimsoll/kernels/cuda/row_runs.cuh"
#include "plimsoll/kernels/embedding/embedding_launch.h"

namespace plimsoll::kernels {
namespace {

// Elements of a run of kRun at `col` that a row of `cols` has.
template <int kRun>
__device__ int count_at(int64_t col, int64_t cols) {
  return static_cast<int>(min(cols - col, int64_t{kRun}));
}

template <Format kWeight, Format kOutput>
__device__ void embedding_forward(const EmbeddingForward& args) {
  constexpr int kRun = embedding_run(kWeight, kOutput);
  using Weight = Element<kWeight>;
  const int64_t dim = args.shape.dim;
  const auto *tokens = static_cast<const Weight*>(args.token_weight),
             *positions = static_cast<const Weight*>(args.position_weight);
  auto* output = static_cast<Element<kOutput>*>(args.output);
  for_row_runs<kEmbeddingThreads>(
      args.shape.batch * args.shape.seq, pieces_of(dim, kRun), [&](int64_t place, int64_t run) {
        const int64_t col = run * kRun, token = args.tokens[place];
        const int count = count_at<kRun>(col, dim);
        float x[kRun], position[kRun];
        if (token >= 0 && token < args.vocabulary) {
          load_any_run<kWeight, kRun>(tokens + token * dim + col, count, x);
        } else {
#pragma unroll
          for (float& one : x) one = __int_as_float(0x7fffffff);
        }
        if (positions != nullptr) {
          load_any_run<kWeight, kRun>(positions + place % args.shape.seq * dim + col, count, position);
#pragma unroll
          for (int i = 0; i < kRun; ++i) x[i] += position[i];
        }
        store_any_run<kOutput, kRun>(output + place * dim + col, count, x);
      });
}

// The number of elements at the beginning of a sorted array that equal its first.
__device__ int64_t count_of_first(const int64_t* sorted, int64_t length) {
  const int64_t first = sorted[0];
  int64_t low = 1, high = 1;  // equal: those before `low`; not equal after the first loop: `high`, if it is there
  while (high < length && sorted[high] == first) {
    low = high + 1;
    high *= 2;
  }
  high = min(high, length);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sorted[middle] == first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <Format kGrad, Format kWeight>
struct EmbeddingGradient {
  static constexpr int kRun = kEmbeddingGradientRun;
  static constexpr int kAtOnce = 8;  // rows that are read before they are added
  using Run = PackedRun<kGrad, kRun>;

  const EmbeddingBackward& args;

  __device__ void of_tokens(const SortedTokens& sorted) const {
    const int64_t places = args.shape.batch * args.shape.seq;
    for_row_runs<kEmbeddingGradientThreads>(places, runs(), [&](int64_t first, int64_t run) {
      const int64_t token = sorted.tokens[first];
      if (token < 0 || token >= args.vocabulary || (first > 0 && sorted.tokens[first - 1] == token)) return;
      const int64_t count = count_of_first(sorted.tokens + first, places - first);
      write(args.token_grad, token, run, count, [&](int64_t i) { return sorted.places[first + i]; });
    });
  }

  __device__ void of_positions() const {
    const auto [batch, seq, dim] = args.shape;
    for_row_runs<kEmbeddingGradientThreads>(seq, runs(), [&](int64_t position, int64_t run) {
      write(args.position_grad, position, run, batch, [&](int64_t i) { return position + i * args.shape.seq; });
    });
  }

 private:
  __device__ int64_t runs() const { return pieces_of(args.shape.dim, kRun); }

  // Columns of a run in a row of `output`: the sum over the places place_at(0) .. place_at(count - 1).
  template <class PlaceAt>
  __device__ void write(void* output, int64_t row, int64_t run, int64_t count, PlaceAt place_at) const {
    const int64_t dim = args.shape.dim, col = run * kRun;
    const auto* grad = static_cast<const Element<kGrad>*>(args.grad) + col;
    const int width = count_at<kRun>(col, dim);
    float sum[kRun] = {};
    if (width == kRun && is_aligned(grad, dim, kRun)) {
      for (int64_t i = 0; i < count; i += kAtOnce) {
        const int there = static_cast<int>(min(count - i, int64_t{kAtOnce}));
        Run rows[kAtOnce] = {};
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (k < there) rows[k] = Run::at(grad + place_at(i + k) * dim);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          float x[kRun];
          rows[k].decode(x);
          if (k < there) add(sum, x);
        }
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        float x[kRun];
        load_run<kGrad, kRun>(grad + place_at(i) * dim, width, false, x);
        add(sum, x);
      }
    }
    store_any_run<kWeight, kRun>(static_cast<Element<kWeight>*>(output) + row * dim + col, width, sum);
  }

  __device__ static void add(float (&sum)[kRun], const float (&x)[kRun]) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) sum[i] += x[i];
  }
};

}  // namespace

#define PLIMSOLL_FORWARD(weight, kWeight, output, kOutput)                                   \
  extern "C" __global__ void __launch_bounds__(kEmbeddingThreads, kEmbeddingBlocks)          \
      embedding_forward_##weight##_##output(const __grid_constant__ EmbeddingForward args) { \
    embedding_forward<Format::kWeight, Format::kOutput>(args);                               \
  }
#define PLIMSOLL_BACKWARD(grad, kGrad, weight, kWeight)                                             \
  extern "C" __global__ void __launch_bounds__(kEmbeddingGradientThreads, kEmbeddingGradientBlocks) \
      embedding_backward_##grad##_##weight(const __grid_constant__ EmbeddingBackward args,          \
                                           const __grid_constant__ SortedTokens sorted) {           \
    const EmbeddingGradient<Format::kGrad, Format::kWeight> gradient{args};                         \
    if (sorted.tokens != nullptr) {                                                                 \
      gradient.of_tokens(sorted);                                                                   \
    } else {                                                                                        \
      gradient.of_positions();                                                                      \
    }                                                                                               \
  }
#define PLIMSOLL_KERNELS(x, kX, y, kY) PLIMSOLL_FORWARD(x, kX, y, kY) PLIMSOLL_BACKWARD(x, kX, y, kY)

PLIMSOLL_KERNELS(fp32, kFp32, fp32, kFp32)
PLIMSOLL_KERNELS(fp32, kFp32, bf16, kBf16)
PLIMSOLL_KERNELS(fp32, kFp32, fp16, kFp16)
PLIMSOLL_KERNELS(bf16, kBf16, fp32, kFp32)
PLIMSOLL_KERNELS(bf16, kBf16, bf16, kBf16)
PLIMSOLL_KERNELS(bf16, kBf16, fp16, kFp16)
PLIMSOLL_KERNELS(fp16, kFp16, fp32, kFp32)
PLIMSOLL_KERNELS(fp16, kFp16, bf16, kBf16)
PLIMSOLL_KERNELS(fp16, kFp16, fp16, kFp16)

}  // namespace plimsoll::kernels
