// Gradients of norms on a CUDA device. What an element becomes stands in norm_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/cuda/row_team.cuh"
#include "plimsoll/kernels/cuda/tiles.cuh"
#include "plimsoll/kernels/norm/norm_element.h"
#include "plimsoll/kernels/norm/norm_launch.h"

namespace plimsoll::kernels {
namespace {

constexpr int kTogether = 2;      // runs of a thread that are asked for together, beside those that it holds
constexpr int kRowsTogether = 8;  // rows of a column sum
constexpr int kSums = 2;          // of g and of g * normal

__device__ float mean_at(const NormBackward& args, int64_t row) {
  return args.kind == NormKind::kLayerNorm ? args.mean[row] : 0.0f;
}

// A row of a team.
template <Format kX>
struct GradientRow {
  using T = Element<kX>;
  const NormBackward& args;
  int64_t offset;  // of its first element
  int64_t cols;    // 0 for a team without a row
  float mean = 0, rstd = 0;

  __device__ GradientRow(const NormBackward& norm, int64_t row)
      : args(norm), offset(row * norm.cols), cols(row < norm.rows ? norm.cols : 0) {
    if (row >= norm.rows) return;
    mean = mean_at(norm, row);
    rstd = norm.rstd[row];
  }

  __device__ const T* elements(const void* p, int64_t col) const { return static_cast<const T*>(p) + offset + col; }
  __device__ T* dx(int64_t col) const { return static_cast<T*>(args.dx) + offset + col; }

  __device__ float gained(float dy, float weight) const {
    return dy * (weight + (args.zero_centered ? 1.0f : -0.0f));  // -0 changes nothing
  }
  __device__ void add_terms(float dy, float x, float weight, float& sum_g, float& sum_gn) const {
    const float g = gained(dy, weight);
    sum_g += g;
    sum_gn = fmaf(g, normal_of(x, mean, rstd), sum_gn);
  }
  __device__ float value(const NormGradient& gradient, float dy, float x, float weight) const {
    return gradient(gained(dy, weight), normal_of(x, mean, rstd));
  }
  __device__ NormGradient gradient(float sum_g, float sum_gn) const {
    const float count = static_cast<float>(args.cols);
    return {rstd, args.kind == NormKind::kLayerNorm ? sum_g / count : 0.0f, sum_gn / count};
  }
};

// A row that its team holds.
template <Format kX>
struct HeldGradientRow : GradientRow<kX> {
  using Run = HeldRun<kX>;
  static constexpr int kRun = Run::kCount;
  int col;   // of this thread's first run
  int left;  // elements from there, at most those of a piece
  Run dy[kTeamRuns], x[kTeamRuns];

  __device__ HeldGradientRow(const NormBackward& norm, const Team<kRun>& team, int64_t row)
      : GradientRow<kX>(norm, row),
        col(in_this_turn(team.piece * kSumBlock + team.col)),
        left(in_reach<kSumBlock>(this->cols - col)) {
    const auto *first_dy = this->elements(norm.dy, col), *first_x = this->elements(norm.x, col);
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      dy[i] = has(i) ? Run::at(first_dy + 64 * i, kRun, true) : Run{};
      x[i] = has(i) ? Run::at(first_x + 64 * i, kRun, true) : Run{};
    }
  }

  __device__ bool has(int i) const { return 64 * i < left; }
  __device__ Words<4 * kRun> weights(int i) const {
    return load_floats<kRun>(this->args.weight + col + 64 * i, has(i), 0.0f);
  }

  __device__ void write(TeamSum<kRun, kSums>& sums) const {
    float chain[kSums][kRun] = {}, total[kSums] = {};
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      const auto weight = weights(i);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (has(i)) this->add_terms(dy[i][k], x[i][k], __uint_as_float(weight.words[k]), chain[0][k], chain[1][k]);
      }
    }
    sums.add(chain, total);
    const NormGradient gradient = this->gradient(sums.join(total[0]), sums.join(total[1]));
    const auto* residual = this->elements(this->args.dresidual, col);
    auto* dx = this->dx(col);
    const bool has_residual = this->args.dresidual != nullptr;
#pragma unroll
    for (int first = 0; first < kTeamRuns; first += kTogether) {
      Run added[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        added[i] = has_residual && has(first + i) ? Run::at(residual + 64 * (first + i), kRun, true) : Run{};
      }
#pragma unroll
      for (int i = first; i < first + kTogether; ++i) {
        const auto weight = weights(i);
        float value[kRun];
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          value[k] = this->value(gradient, dy[i][k], x[i][k], __uint_as_float(weight.words[k]));
          if (has_residual) value[k] += added[i - first][k];
        }
        if (has(i)) store_codes<kX>(dx + 64 * i, kRun, true, encode_run<kX, true>(value));
      }
    }
  }
};

// A row of any width and alignment: each pass reads it.
template <Format kX>
struct ReadGradientRow : GradientRow<kX> {
  using Run = HeldRun<kX>;
  static constexpr int kRun = Run::kCount;
  const Team<kRun>& team;
  bool aligned;

  __device__ ReadGradientRow(const NormBackward& norm, const Team<kRun>& one, int64_t row, bool is_aligned)
      : GradientRow<kX>(norm, row), team(one), aligned(is_aligned) {}

  // body(col, count, dy, x) for the runs of this thread in a strip.
  template <class Body>
  __device__ void for_runs(int64_t strip, Body body) const {
    const int64_t first = team.first(strip);
#pragma unroll 1
    for (int i = 0; i < kTeamRuns; ++i) {
      const int64_t col = first + 64 * i;
      const int count = in_reach<kRun>(this->cols - col);
      if (count == 0) break;
      const bool whole = aligned && count == kRun;
      body(col, count, whole, Run::at(this->elements(this->args.dy, col), count, whole),
           Run::at(this->elements(this->args.x, col), count, whole));
    }
  }

  __device__ void write(TeamSum<kRun, kSums>& sums) const {
    const int64_t strips = team.strips(this->args.cols);
    const float* weight = this->args.weight;
    float total[kSums] = {};
    for (int64_t strip = 0; strip < strips; ++strip) {
      float chain[kSums][kRun] = {};
      for_runs(strip, [&](int64_t col, int count, bool, const Run& dy, const Run& x) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (k < count) this->add_terms(dy[k], x[k], weight[col + k], chain[0][k], chain[1][k]);
        }
      });
      sums.add(chain, total);
    }
    const NormGradient gradient = this->gradient(sums.join(total[0]), sums.join(total[1]));
    for (int64_t strip = 0; strip < strips; ++strip) {
      for_runs(strip, [&](int64_t col, int count, bool whole, const Run& dy, const Run& x) {
        const bool has_residual = this->args.dresidual != nullptr;
        const Run residual = has_residual ? Run::at(this->elements(this->args.dresidual, col), count, whole) : Run{};
        float value[kRun] = {};
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (k >= count) break;
          value[k] = this->value(gradient, dy[k], x[k], weight[col + k]);
          if (has_residual) value[k] += residual[k];
        }
        store_codes<kX>(this->dx(col), count, whole, encode_run<kX, true>(value));
      });
    }
  }
};

template <Format kX>
__device__ void norm_backward(const NormBackward& args) {
  constexpr int kRun = HeldRun<kX>::kCount;
  __shared__ TeamBuffer<kSums> buffer;
  const Team<kRun> team(args.cols);
  TeamSum<kRun, kSums> sums(team, buffer);
  const auto is_whole = [&](const void* p) { return is_aligned(static_cast<const Element<kX>*>(p), args.cols, kRun); };
  const bool aligned = is_whole(args.dy) && is_whole(args.x) && is_whole(args.dx) &&
                       (args.dresidual == nullptr || is_whole(args.dresidual));
  const bool held = aligned && is_aligned(args.weight, args.cols, kRun) && is_held(args.cols, sizeof(Element<kX>));
  const int64_t blocks = pieces_of(args.rows, team.teams);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t row = block * team.teams + team.index;
    if (held) {
      HeldGradientRow<kX>(args, team, row).write(sums);
    } else {
      ReadGradientRow<kX>(args, team, row, aligned).write(sums);
    }
  }
}

// Terms of a run of columns over the rows of a block.
template <int kRun>
struct ColumnSums {
  float dweight[kRun], dbias[kRun];
};
template <Format kX, bool kWhole>
__device__ ColumnSums<HeldRun<kX>::kCount> sum_columns(const NormBackward& args, int64_t begin, int64_t end,
                                                       int64_t col, int count) {
  using Run = HeldRun<kX>;
  const auto *dy = static_cast<const Element<kX>*>(args.dy) + begin * args.cols + col,
             *x = static_cast<const Element<kX>*>(args.x) + begin * args.cols + col;
  ColumnSums<Run::kCount> sums = {};
  const auto add = [&](const Run& gradient, const Run& value, float mean, float rstd) {
#pragma unroll
    for (int k = 0; k < Run::kCount; ++k) {
      sums.dweight[k] = fmaf(gradient[k], normal_of(value[k], mean, rstd), sums.dweight[k]);
      sums.dbias[k] += gradient[k];
    }
  };
  int64_t row = begin;
  for (; kWhole && row + kRowsTogether <= end; row += kRowsTogether) {
    Run gradient[kRowsTogether], value[kRowsTogether];
    float mean[kRowsTogether], rstd[kRowsTogether];
#pragma unroll
    for (int i = 0; i < kRowsTogether; ++i, dy += args.cols, x += args.cols) {
      gradient[i] = Run::at(dy, count, true);
      value[i] = Run::at(x, count, true);
      rstd[i] = args.rstd[row + i];
      mean[i] = mean_at(args, row + i);
    }
#pragma unroll
    for (int i = 0; i < kRowsTogether; ++i) add(gradient[i], value[i], mean[i], rstd[i]);
  }
#pragma unroll 1
  for (; row < end; ++row, dy += args.cols, x += args.cols) {
    add(Run::at(dy, count, kWhole), Run::at(x, count, kWhole), mean_at(args, row), args.rstd[row]);
  }
  return sums;
}

template <int kRun>
__device__ void store_partial(float* p, int count, const float (&sums)[kRun]) {
  const bool whole = count == kRun && is_aligned(p, 0, kRun);
  store_codes<Format::kFp32>(p, count, whole, encode_run<Format::kFp32, true>(sums));
}

template <Format kX>
__device__ void norm_backward_partials(const NormBackward& args, float* partials) {
  constexpr int kRun = HeldRun<kX>::kCount, kCols = kRun * kNormSumThreads;
  static_assert(kCols == norm_partial_cols(kX));
  const bool aligned = is_aligned(static_cast<const Element<kX>*>(args.dy), args.cols, kRun) &&
                       is_aligned(static_cast<const Element<kX>*>(args.x), args.cols, kRun);
  for (Tiles tiles(pieces_of(args.rows, kRowBlock), pieces_of(args.cols, kCols)); tiles.is_in(); tiles.advance()) {
    const int64_t col = tiles.col * kCols + threadIdx.x * kRun;
    const int count = in_reach<kRun>(args.cols - col);
    if (count == 0) continue;
    const int64_t begin = tiles.row * kRowBlock, end = min(begin + kRowBlock, args.rows);
    const auto sums = count == kRun && aligned ? sum_columns<kX, true>(args, begin, end, col, count)
                                               : sum_columns<kX, false>(args, begin, end, col, count);
    float* partial = partials + tiles.row * norm_sum_count(args) * args.cols + col;
    if (args.dweight != nullptr) {
      store_partial(partial, count, sums.dweight);
      partial += args.cols;
    }
    if (args.dbias != nullptr) store_partial(partial, count, sums.dbias);
  }
}

// The sum over b of partial[b * stride], in groups as sum_blocks of row_blocks.h adds. Each warp takes a group of a column for each of
// its lanes; every thread calls it, and the first warp gets the sum.
__device__ float sum_groups(const float* partial, int64_t blocks, int64_t stride) {
  constexpr int kWarps = kNormSumThreads / kWarp;
  __shared__ float totals[kWarps][kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float sum = 0;
  for (int64_t first = 0; first < blocks; first += kWarps * kGroup) {
    const int64_t begin = first + warp * kGroup, end = min(begin + kGroup, blocks);
    float total = 0;
    if (partial != nullptr) {
#pragma unroll 16
      for (int64_t block = begin; block < end; ++block) total += partial[block * stride];
    }
    __syncthreads();  // those before have been added
    totals[warp][lane] = total;
    __syncthreads();
    const int64_t groups = pieces_of(blocks - first, kGroup);
    for (int i = 0; i < kWarps && i < groups; ++i) sum += totals[i][lane];
  }
  return sum;
}

}  // namespace

#define PLIMSOLL_KERNELS(x, kX)                                                                    \
  extern "C" __global__ void __launch_bounds__(kTeamThreads, kNormBackwardResident / kTeamThreads) \
      norm_backward_##x(const __grid_constant__ NormBackward args) {                               \
    norm_backward<Format::kX>(args);                                                               \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kNormSumThreads)                                    \
      norm_backward_partials_##x(const __grid_constant__ NormBackwardSums sums) {                  \
    norm_backward_partials<Format::kX>(sums.args, sums.partials);                                  \
  }

PLIMSOLL_KERNELS(fp32, kFp32)
PLIMSOLL_KERNELS(bf16, kBf16)
PLIMSOLL_KERNELS(fp16, kFp16)

extern "C" __global__ void __launch_bounds__(kNormSumThreads)
    norm_backward_sums(const __grid_constant__ NormBackwardSums sums) {
  const NormBackward& args = sums.args;
  const int64_t count = norm_sum_count(args), blocks = pieces_of(args.rows, kRowBlock);
  for (Tiles tiles(count, pieces_of(args.cols, kWarp)); tiles.is_in(); tiles.advance()) {
    const int64_t col = tiles.col * kWarp + threadIdx.x % kWarp;
    const bool is_in = col < args.cols;
    const float total =
        sum_groups(is_in ? sums.partials + tiles.row * args.cols + col : nullptr, blocks, count * args.cols);
    float* sum = tiles.row == 0 && args.dweight != nullptr ? args.dweight : args.dbias;
    if (is_in && threadIdx.x < kWarp) sum[col] = total;
  }
}

}  // namespace plimsoll::kernels
