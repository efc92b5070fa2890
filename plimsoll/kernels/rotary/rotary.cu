// Rotary positions on a CUDA device. What a pair becomes stands in rotary_element.h.
#include "plimsoll/kernels/cuda/any_run.cuh"
#include "plimsoll/kernels/cuda/tiles.cuh"
#include "plimsoll/kernels/rotary/rotary_element.h"
#include "plimsoll/kernels/rotary/rotary_launch.h"

namespace plimsoll::kernels {
namespace {

template <Format kFormat>
struct RotaryHeads {
  using T = Element<kFormat>;
  static constexpr int kRun = rotary_run(kFormat);
  using Packed = PackedRun<kFormat, kRun>;
  using Values = float[2][kRun];  // of two runs

  const Rotary& args;

  __device__ void turn() const {
    const int64_t runs = rotary_runs(args), block_heads = rotary_block_heads(args);
    const RowThreads threads = row_threads(runs, kRotaryThreads);
    const int row = threadIdx.x / threads.lanes, lane = threadIdx.x % threads.lanes;
    if (row >= threads.rows) return;
    const bool packed = are_packed();
    for (Tiles tiles(args.tokens, pieces_of(args.heads, block_heads)); tiles.is_in(); tiles.advance()) {
      const int64_t first = tiles.col * block_heads, last = min(first + block_heads, args.heads);
      for (int64_t run = lane; run < runs; run += threads.lanes) {
        const Heads heads{tiles.row, first + row, last, threads.rows};
        copy_run(heads, run);
        if (run >= rotary_pair_runs(args)) continue;
        if (packed) {
          turn_packed_run(heads, run);
        } else {
          turn_run(heads, run);
        }
      }
    }
  }

 private:
  // Heads of a token that a thread takes: first, first + step, ...
  struct Heads {
    int64_t token, first, last;
    int step;
  };

  __device__ int64_t turned_heads() const { return args.heads - args.copied_heads; }
  __device__ int64_t angles_of(int64_t token) const { return token / args.repeats % args.positions * args.rotated; }
  __device__ const T* x_at(int64_t token, int64_t head) const {
    return static_cast<const T*>(args.x) + token * args.x_token_stride + head * args.x_head_stride;
  }
  __device__ T* y_at(int64_t token, int64_t head) const {
    return static_cast<T*>(args.y) + (token * args.heads + head) * args.channels;
  }

  // Whether every run of pairs is whole and aligned.
  __device__ bool are_packed() const {
    const T *x = x_at(0, 0), *y = y_at(0, 0);
    return args.rotated % (2 * kRun) == 0 && is_aligned(x, args.x_token_stride, kRun) &&
           is_aligned(x, args.x_head_stride, kRun) && is_aligned(y, args.channels, kRun) &&
           is_aligned(args.cosine, 0, 4) && is_aligned(args.sine, 0, 4);
  }

  // Channels that are not turned: those of a copied head from the run's place, those of others behind its pairs.
  __device__ void copy_run(const Heads& heads, int64_t run) const {
#pragma unroll 1
    for (int64_t head = heads.first; head < heads.last; head += heads.step) {
      int64_t channel = 2 * kRun * run;
      if (head < turned_heads()) {
        if (run < rotary_pair_runs(args)) continue;
        channel = args.rotated + 2 * kRun * (run - rotary_pair_runs(args));
      }
      const T* const x = x_at(heads.token, head);
      T* const y = y_at(heads.token, head);
#pragma unroll 1
      for (int i = 0; i < 2 && channel < args.channels; ++i, channel += kRun) {
        copy_any_run<kFormat, kRun>(x + channel, y + channel,
                                    static_cast<int>(min(args.channels - channel, int64_t{kRun})));
      }
    }
  }

  // body(i, j, k, l) for each pair of two runs: x[i][j] and x[k][l].
  template <class Body>
  __device__ void for_pairs(Body body) const {
    if (args.interleaved) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kRun; j += 2) body(i, j, i, j + 1);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j) body(0, j, 1, j);
    }
  }

  __device__ static void load_angles(const float* p, int64_t distance, Values& x) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_run<Format::kFp32, kRun>(p + i * distance, kRun, true, x[i]);
    }
  }

  __device__ void turn_packed_run(const Heads& heads, int64_t run) const {
    // From a run's first elements to its second ones.
    const int64_t distance = args.interleaved ? kRun : args.rotated / 2;
    const int64_t channel = args.interleaved ? 2 * kRun * run : kRun * run;
    Values cosine, sine;
    load_angles(args.cosine + angles_of(heads.token) + channel, distance, cosine);
    load_angles(args.sine + angles_of(heads.token) + channel, distance, sine);
    if (args.transposed) {
      for_pairs([&](int i, int j, int k, int l) {
        const RotaryPair both = transposed_sine({sine[i][j], sine[k][l]});
        sine[i][j] = both.first;
        sine[k][l] = both.second;
      });
    }
    const int64_t last = min(heads.last, turned_heads());
#pragma unroll 1
    for (int64_t head = heads.first; head < last; head += heads.step) {
      const T* const x = x_at(heads.token, head) + channel;
      T* const y = y_at(heads.token, head) + channel;
      const Packed first = Packed::at(x), second = Packed::at(x + distance);
      Values value;
      first.decode(value[0]);
      second.decode(value[1]);
      for_pairs([&](int i, int j, int k, int l) {
        const RotaryPair both =
            turned_pair({value[i][j], value[k][l]}, {cosine[i][j], cosine[k][l]}, {sine[i][j], sine[k][l]});
        value[i][j] = both.first;
        value[k][l] = both.second;
      });
      Packed::of(value[0]).store(y);
      Packed::of(value[1]).store(y + distance);
    }
  }

  // Pair by pair.
  __device__ void turn_run(const Heads& heads, int64_t run) const {
    const int64_t half = args.rotated / 2, end = min((run + 1) * kRun, half), last = min(heads.last, turned_heads());
    const int64_t distance = args.interleaved ? 1 : half;
    const float *cosine = args.cosine + angles_of(heads.token), *sine = args.sine + angles_of(heads.token);
#pragma unroll 1
    for (int64_t pair = run * kRun; pair < end; ++pair) {
      const int64_t one = args.interleaved ? 2 * pair : pair, other = one + distance;
      RotaryPair sines{sine[one], sine[other]};
      if (args.transposed) sines = transposed_sine(sines);
#pragma unroll 1
      for (int64_t head = heads.first; head < last; head += heads.step) {
        const T* const x = x_at(heads.token, head);
        T* const y = y_at(heads.token, head);
        const RotaryPair both =
            turned_pair({load<kFormat>(x, one), load<kFormat>(x, other)}, {cosine[one], cosine[other]}, sines);
        const float values[2] = {both.first, both.second}, second[2] = {both.second, 0.0f};
        store_run<kFormat, 2>(y + one, 1, false, values);
        store_run<kFormat, 2>(y + other, 1, false, second);
      }
    }
  }
};

}  // namespace

#define PLIMSOLL_KERNEL(x, kX)                                                \
  extern "C" __global__ void __launch_bounds__(kRotaryThreads, kRotaryBlocks) \
      rotary_##x(const __grid_constant__ Rotary args) {                       \
    RotaryHeads<Format::kX>{args}.turn();                                     \
  }

PLIMSOLL_KERNEL(fp32, kFp32)
PLIMSOLL_KERNEL(bf16, kBf16)
PLIMSOLL_KERNEL(fp16, kFp16)

}  // namespace plimsoll::kernels
