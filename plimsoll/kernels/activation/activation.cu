// Activations on a CUDA device. What an element becomes stands in activation_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/activation/activation_division.cuh"
#include "plimsoll/kernels/activation/activation_launch.h"
#include "plimsoll/kernels/cuda/amax.cuh"
#include "plimsoll/kernels/cuda/packed_run.cuh"
#include "plimsoll/kernels/cuda/row_blocks.cuh"
#include "plimsoll/kernels/cuda/tiles.cuh"
#include "plimsoll/kernels/inv_scale.h"

namespace plimsoll::kernels {
namespace {

// A matrix that is read or written, from one of its columns on.
template <Format kFormat, int kRun>
struct Columns {
  using T = Element<kFormat>;
  using Packed = PackedRun<kFormat, kRun>;
  T* data;
  int64_t stride;

  template <class Pointer>
  __device__ static Columns of(Pointer data, int64_t first, int64_t stride) {
    return {const_cast<T*>(static_cast<const T*>(data)) + first, stride};
  }
  __device__ bool are_aligned() const { return is_aligned(data, stride, kRun); }
  __device__ T* at(int64_t row, int64_t col) const { return data + row * stride + col; }
};

// Writes runs, FP8 scaled, and keeps the amax before it.
template <Format kFormat, int kRun>
struct Writer {
  float inv_scale, amax = 0;

  __device__ void write(Element<kFormat>* p, int count, bool whole, float (&x)[kRun]) {
    float run_amax = 0;
#pragma unroll
    for (float one : x) run_amax = larger_magnitude(run_amax, one);
    amax = larger_magnitude(amax, run_amax);
    bool is_packed = whole;
    if constexpr (format::is_fp8(kFormat)) {
#pragma unroll
      for (float& one : x) one *= inv_scale;
      // The largest product, if none is NaN.
      is_packed = whole && run_amax * fabsf(inv_scale) < __int_as_float(0x7f800000);
    }
    if (is_packed) {
      PackedRun<kFormat, kRun>::of(x).store(p);
    } else {
      store_run<kFormat, kRun>(p, count, whole, x);
    }
  }
};

// x[place] = value, where x stays in registers for any place.
template <int kRun>
__device__ void set_at(float (&x)[kRun], int place, float value) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) x[i] = i == place ? value : x[i];
}

template <Format kX, Format kY>
__device__ void activation_forward(const ActivationForward& args, const ActivationCurve& curve) {
  constexpr int kRun = activation_run(kX, kY), kTile = activation_tile(kX, kY);
  using X = Columns<kX, kRun>;
  const bool gated = curve.gated;
  const int64_t rows = gated ? args.rows : 1, cols = gated ? args.cols : args.rows * args.cols;
  const X x = X::of(args.x, 0, gated ? 2 * cols : cols), value = X::of(args.x, gated ? cols : 0, x.stride);
  const auto y = Columns<kY, kRun>::of(args.y, 0, cols);
  const bool aligned = x.are_aligned() && value.are_aligned() && y.are_aligned();
  const bool divides_fast = FastDivision::is_for(curve);
  Writer<kY, kRun> writer{inv_scale_at(args.scale)};
  for (Tiles tiles(rows, pieces_of(cols, kTile)); tiles.is_in(); tiles.advance()) {
    const int64_t col = tiles.col * kTile + threadIdx.x * kRun, left = cols - col;
    if (left <= 0) continue;
    const int count = static_cast<int>(left < kRun ? left : kRun);
    const bool whole = aligned && count == kRun;
    const auto *from = x.at(tiles.row, col), *from_value = value.at(tiles.row, col);
    float out[kRun] = {};
    bool is_open = true;
    if (whole) {
      const auto raw = X::Packed::at(from), raw_value = gated ? X::Packed::at(from_value) : raw;
      FastDivision division;
      raw.decode(out);
      with_function(curve, [&](auto function) {
#pragma unroll
        for (float& one : out) one = function(one, division);
      });
      if (gated) {
        float factor[kRun];
        raw_value.decode(factor);
#pragma unroll
        for (int i = 0; i < kRun; ++i) out[i] *= gated_value_of(curve, factor[i]);
      }
      is_open = division.quotient_is_open() || division.reciprocal_is_open() || !divides_fast;
    }
    if (is_open) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const float one = load<kX>(from, i);
        if (whole && one == 0.0f) continue;  // has been divided by 2
        const ExactDivision division;
        float result = 0;
        with_function(curve, [&](auto function) { result = function(one, division); });
        set_at(out, i, gated ? result * gated_value_of(curve, load<kX>(from_value, i)) : result);
      }
    }
    writer.write(y.at(tiles.row, col), count, whole, out);
  }
  raise_amax<kActivationThreads>(magnitude(writer.amax), args.amax);
}

template <int kRun>
__device__ void add_to(float (&sum)[kRun], const float (&x)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) sum[i] += x[i];
}

template <Format kX, Format kDx, bool kSummed>
__device__ void activation_backward(const ActivationBackward& args, const ActivationCurve& curve, float* partials) {
  constexpr int kRun = gradient_run(kX, kDx, kSummed), kTile = gradient_tile(kX, kDx, kSummed);
  using X = Columns<kX, kRun>;
  using Dx = Columns<kDx, kRun>;
  const bool gated = curve.gated, by_row = gated || kSummed;
  const int64_t rows = by_row ? args.rows : 1, cols = by_row ? args.cols : args.rows * args.cols;
  const int64_t width = gated ? 2 * cols : cols, tile_rows = kSummed ? kRowBlock : 1, second = gated ? cols : 0;
  const X x = X::of(args.x, 0, width), value = X::of(args.x, second, width), dy = X::of(args.dy, 0, cols);
  const Dx dx = Dx::of(args.dx, 0, width), dvalue = Dx::of(args.dx, second, width);
  const bool aligned =
      x.are_aligned() && value.are_aligned() && dy.are_aligned() && dx.are_aligned() && dvalue.are_aligned();
  const bool divides_fast = FastDivision::is_for(curve);
  Writer<kDx, kRun> writer{inv_scale_at(args.scale)};
  for (Tiles tiles(pieces_of(rows, tile_rows), pieces_of(cols, kTile)); tiles.is_in(); tiles.advance()) {
    const int64_t col = tiles.col * kTile + threadIdx.x * kRun, left = cols - col;
    if (left <= 0) continue;
    const int count = static_cast<int>(left < kRun ? left : kRun);
    const bool whole = aligned && count == kRun;
    const int64_t end = min((tiles.row + 1) * tile_rows, rows);
    [[maybe_unused]] float dx_sum[kRun] = {}, dvalue_sum[kRun] = {};
    for (int64_t row = tiles.row * tile_rows; row < end; ++row) {
      const auto *from = x.at(row, col), *from_value = value.at(row, col), *from_dy = dy.at(row, col);
      float out[kRun] = {}, out_value[kRun] = {};
      bool is_open = true;
      if (whole) {
        const auto raw = X::Packed::at(from), raw_dy = X::Packed::at(from_dy);
        const auto raw_value = gated ? X::Packed::at(from_value) : raw;
        FastDivision division;
        float gradient[kRun];
        raw.decode(out);
        raw_dy.decode(gradient);
        if (gated) {
          raw_value.decode(out_value);
          with_gradient(curve, [&](auto both) {
#pragma unroll
            for (int i = 0; i < kRun; ++i) {
              const ValueAndGradient at = both(out[i], division);
              out[i] = gradient[i] * gated_value_of(curve, out_value[i]) * at.gradient;
              out_value[i] = gated_gradient_of(curve, out_value[i], gradient[i] * at.value);
            }
          });
          is_open = division.quotient_is_open() || division.reciprocal_is_open() || !divides_fast;
        } else {
          with_gradient(curve, [&](auto both) {
#pragma unroll
            for (int i = 0; i < kRun; ++i) out[i] = gradient[i] * both(out[i], division).gradient;
          });
          is_open = division.reciprocal_is_open();
        }
      }
      if (is_open) {
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
          const float one = load<kX>(from, i), gradient = load<kX>(from_dy, i);
          if (whole && one == 0.0f) continue;  // has been divided by 2
          const ExactDivision division;
          ValueAndGradient at = {};
          with_gradient(curve, [&](auto both) { at = both(one, division); });
          if (gated) {
            const float factor = load<kX>(from_value, i);
            set_at(out, i, gradient * gated_value_of(curve, factor) * at.gradient);
            set_at(out_value, i, gated_gradient_of(curve, factor, gradient * at.value));
          } else {
            set_at(out, i, gradient * at.gradient);
          }
        }
      }
      if constexpr (kSummed) add_to(dx_sum, out);
      if (gated) {
        if constexpr (kSummed) add_to(dvalue_sum, out_value);
        writer.write(dvalue.at(row, col), count, whole, out_value);
      }
      writer.write(dx.at(row, col), count, whole, out);
    }
    if constexpr (kSummed) {
      const auto partial = Columns<Format::kFp32, kRun>::of(partials, 0, width);
      const bool whole_partial = count == kRun && is_aligned(partials, width, 4) && cols % 4 == 0;
      store_run<Format::kFp32, kRun>(partial.at(tiles.row, col), count, whole_partial, dx_sum);
      if (gated) {
        store_run<Format::kFp32, kRun>(partial.at(tiles.row, cols + col), count, whole_partial, dvalue_sum);
      }
    }
  }
  raise_amax<kGradientThreads>(magnitude(writer.amax), args.amax);
}

}  // namespace

#define PLIMSOLL_FORWARD(x, kX, y, kY)                                                                              \
  extern "C" __global__ void __launch_bounds__(kActivationThreads, kActivationBlocks) activation_forward_##x##_##y( \
      const __grid_constant__ ActivationForward args, const __grid_constant__ ActivationCurve curve) {              \
    activation_forward<Format::kX, Format::kY>(args, curve);                                                        \
  }
#define PLIMSOLL_BACKWARD(x, kX, y, kY)                                                               \
  extern "C" __global__ void __launch_bounds__(kGradientThreads, kGradientBlocks)                     \
      activation_backward_##x##_##y(const __grid_constant__ ActivationBackward args,                  \
                                    const __grid_constant__ ActivationCurve curve, float* partials) { \
    if (args.column_sum != nullptr) {                                                                 \
      activation_backward<Format::kX, Format::kY, true>(args, curve, partials);                       \
    } else {                                                                                          \
      activation_backward<Format::kX, Format::kY, false>(args, curve, nullptr);                       \
    }                                                                                                 \
  }
#define PLIMSOLL_KERNELS(x, kX)        \
  PLIMSOLL_FORWARD(x, kX, x, kX)       \
  PLIMSOLL_FORWARD(x, kX, e4m3, kE4m3) \
  PLIMSOLL_FORWARD(x, kX, e5m2, kE5m2) \
  PLIMSOLL_BACKWARD(x, kX, x, kX) PLIMSOLL_BACKWARD(x, kX, e4m3, kE4m3) PLIMSOLL_BACKWARD(x, kX, e5m2, kE5m2)

PLIMSOLL_KERNELS(fp32, kFp32)
PLIMSOLL_KERNELS(bf16, kBf16)
PLIMSOLL_KERNELS(fp16, kFp16)
PLIMSOLL_FORWARD(bf16, kBf16, fp32, kFp32)
PLIMSOLL_FORWARD(fp16, kFp16, fp32, kFp32)

extern "C" __global__ void __launch_bounds__(kActivationSumThreads)
    activation_backward_sums(const __grid_constant__ ActivationBackward args,
                             const __grid_constant__ ActivationCurve curve, float* partials) {
  const int64_t width = curve.gated ? 2 * args.cols : args.cols, blocks = pieces_of(args.rows, kRowBlock);
  for (int64_t tile = blockIdx.x; tile * kActivationSumThreads < width; tile += gridDim.x) {
    const int64_t col = tile * kActivationSumThreads + threadIdx.x;
    if (col < width) args.column_sum[col] = sum_blocks_of(partials + col, blocks, width);
  }
}

}  // namespace plimsoll::kernels
