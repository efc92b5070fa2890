// Norms on a CUDA device. What an element becomes stands in norm_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/cuda/row_team.cuh"
#include "plimsoll/kernels/inv_scale.h"
#include "plimsoll/kernels/norm/norm_element.h"
#include "plimsoll/kernels/norm/norm_launch.h"

namespace plimsoll::kernels {
namespace {

constexpr int kTogether = 2;  // runs of a thread that are asked for together, beside those that it holds
constexpr float kNoBias = -0.0f;

// The most that a thread has: those that norm_resident leaves it, or more where FP8 is encoded without the card's conversion.
constexpr int registers_of(Format x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  return 112;
#else
  return x == Format::kFp32 ? 112 : 96;
#endif
}

struct Statistics {
  float mean, rstd;
};

// A row of a team.
template <Format kX, Format kY>
struct NormRow {
  using Run = HeldRun<kX>;
  static constexpr int kRun = Run::kCount;
  const NormForward& args;
  Team<kRun> team;
  int64_t offset;  // of its first element
  int64_t cols;    // 0 for a team without a row

  __device__ NormRow(const NormForward& norm, const Team<kRun>& one, int64_t row)
      : args(norm), team(one), offset(row * norm.cols), cols(row < norm.rows ? norm.cols : 0) {}

  __device__ const Element<kX>* elements(const void* p) const { return static_cast<const Element<kX>*>(p) + offset; }
  __device__ Element<kX>* sum() const { return static_cast<Element<kX>*>(args.sum) + offset; }
  __device__ Element<kY>* y() const { return static_cast<Element<kY>*>(args.y) + offset; }
  __device__ const Element<kX>* source() const { return elements(args.residual != nullptr ? args.sum : args.x); }

  __device__ static Run added(const Run& a, const Run& b) {
    float sum[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) sum[k] = a[k] + b[k];
    return {encode_run<kX, true>(sum)};
  }

  __device__ float normal(float x, const Statistics& s, float weight, float bias) const {
    // Minus one as zero-centred weights are stored; -0 changes nothing.
    return normalized(x, s.mean, s.rstd, weight + (args.zero_centered ? 1.0f : -0.0f), bias);
  }
};

// A row that its team holds.
template <Format kX, Format kY>
struct HeldRow : NormRow<kX, kY> {
  using Row = NormRow<kX, kY>;
  using Run = HeldRun<kX>;
  static constexpr int kRun = Run::kCount;
  int col;   // of this thread's first run
  int left;  // elements from there, at most those of a piece
  Run runs[kTeamRuns];

  __device__ HeldRow(const NormForward& norm, const Team<kRun>& one, int64_t row)
      : Row(norm, one, row),
        col(in_this_turn(one.piece * kSumBlock + one.col)),
        left(in_reach<kSumBlock>(this->cols - col)) {
    const auto* x = this->elements(this->args.x) + col;
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) runs[i] = has(i) ? Run::at(x + 64 * i, kRun, true) : Run{};
    if (this->args.residual != nullptr) add_residual();
  }

  __device__ bool has(int i) const { return 64 * i < left; }

  __device__ void add_residual() {
    const auto* residual = this->elements(this->args.residual) + col;
    auto* sum = this->sum() + col;
#pragma unroll
    for (int first = 0; first < kTeamRuns; first += kTogether) {
      Run other[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        other[i] = has(first + i) ? Run::at(residual + 64 * (first + i), kRun, true) : Run{};
      }
#pragma unroll
      for (int i = first; i < first + kTogether; ++i) {
        runs[i] = this->added(runs[i], other[i - first]);
        if (has(i)) store_codes<kX>(sum + 64 * i, kRun, true, runs[i].raw);
      }
    }
  }

  // The sum over the row: add_term(x, sum) is `sum` and the term of x. Every thread of the block calls it.
  template <class AddTerm>
  __device__ float sum_of(TeamSum<kRun>& sums, AddTerm add_term) const {
    float chain[1][kRun] = {}, total[1] = {};
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (has(i)) chain[0][k] = add_term(runs[i][k], chain[0][k]);
      }
    }
    sums.add(chain, total);
    return sums.join(total[0]);
  }

  // Returns the amax of what this thread writes. In FP8, codes are right only if inv_scale times that is finite.
  template <bool kLayerNorm>
  __device__ float write(const Statistics& statistics, float inv_scale) const {
    const float *weight = this->args.weight + col, *bias = this->args.bias + col;
    auto* y = this->y() + col;
    const bool has_bias = this->args.bias != nullptr;
    float amax = 0;
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      const auto gains = load_floats<kRun>(weight + 64 * i, has(i), 0.0f);
      const auto shifts = load_floats<kRun>(bias + 64 * i, kLayerNorm && has_bias && has(i), kNoBias);
      float value[kRun], run_amax = 0;
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        value[k] = this->normal(runs[i][k], {kLayerNorm ? statistics.mean : 0.0f, statistics.rstd},
                                __uint_as_float(gains.words[k]), __uint_as_float(shifts.words[k]));
        run_amax = larger_magnitude(value[k], run_amax);
        if constexpr (format::is_fp8(kY)) value[k] *= inv_scale;
      }
      const auto codes = encode_run<kY, true>(value);
      if (!has(i)) continue;
      amax = larger_magnitude(run_amax, amax);
      store_codes<kY>(y + 64 * i, kRun, true, codes);
    }
    return amax;
  }
};

// A row of any width and alignment: each pass reads it.
template <Format kX, Format kY>
struct ReadRow : NormRow<kX, kY> {
  using Row = NormRow<kX, kY>;
  using Run = HeldRun<kX>;
  static constexpr int kRun = Run::kCount;
  bool aligned;

  __device__ ReadRow(const NormForward& norm, const Team<kRun>& one, int64_t row, bool is_aligned)
      : Row(norm, one, row), aligned(is_aligned) {}

  // body(col, count, whole) for the runs of this thread in a strip.
  template <class Body>
  __device__ void for_runs(int64_t strip, Body body) const {
    const int64_t first = this->team.first(strip);
#pragma unroll 1
    for (int i = 0; i < kTeamRuns; ++i) {
      const int64_t col = first + 64 * i;
      const int count = in_reach<kRun>(this->cols - col);
      if (count == 0) break;
      body(col, count, aligned && count == kRun);
    }
  }

  __device__ int64_t strips() const { return this->team.strips(this->args.cols); }

  __device__ void add_residual() const {
    for (int64_t strip = 0; strip < strips(); ++strip) {
      for_runs(strip, [&](int64_t col, int count, bool whole) {
        const Run x = Run::at(this->elements(this->args.x) + col, count, whole),
                  residual = Run::at(this->elements(this->args.residual) + col, count, whole);
        store_codes<kX>(this->sum() + col, count, whole, this->added(x, residual).raw);
      });
    }
  }

  template <class AddTerm>
  __device__ float sum_of(TeamSum<kRun>& sums, AddTerm add_term) const {
    float total[1] = {};
    for (int64_t strip = 0; strip < strips(); ++strip) {
      float chain[1][kRun] = {};
      for_runs(strip, [&](int64_t col, int count, bool whole) {
        const Run run = Run::at(this->source() + col, count, whole);
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (k < count) chain[0][k] = add_term(run[k], chain[0][k]);
        }
      });
      sums.add(chain, total);
    }
    return sums.join(total[0]);
  }

  __device__ float write(const Statistics& statistics, float inv_scale) const {
    const float *weight = this->args.weight, *bias = this->args.bias;
    float amax = 0;
    for (int64_t strip = 0; strip < strips(); ++strip) {
      for_runs(strip, [&](int64_t col, int count, bool whole) {
        const Run run = Run::at(this->source() + col, count, whole);
        float value[kRun] = {};
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (k >= count) break;
          value[k] = this->normal(run[k], statistics, weight[col + k], bias != nullptr ? bias[col + k] : kNoBias);
          amax = larger_magnitude(value[k], amax);
          if constexpr (format::is_fp8(kY)) value[k] *= inv_scale;
        }
        store_codes<kY>(this->y() + col, count, whole, encode_run<kY, false>(value));
      });
    }
    return amax;
  }
};

// Every thread of the block calls it.
template <bool kLayerNorm, class Row, class Sums>
__device__ Statistics statistics_of(const Row& row, Sums& sums) {
  const NormForward& args = row.args;
  const float count = static_cast<float>(args.cols);
  if constexpr (kLayerNorm) {
    const float mean = row.sum_of(sums, [](float x, float sum) { return sum + x; }) / count;
    const float squares = row.sum_of(sums, [=](float x, float sum) {
      const float difference = x - mean;
      return fmaf(difference, difference, sum);
    });
    return {mean, rstd_of_variance(squares / count, args.epsilon)};
  } else {
    const float squares = row.sum_of(sums, [](float x, float sum) { return fmaf(x, x, sum); });
    return {0.0f, rstd_of_variance(squares / count, args.epsilon)};
  }
}

// Work of a thread of a block on all its rows.
template <Format kX, Format kY>
class NormTeam {
 public:
  static constexpr int kRun = HeldRun<kX>::kCount;

  __device__ NormTeam(const NormForward& args, TeamBuffer<1>& buffer)
      : args_(args), team_(args.cols), sums_(team_, buffer), inv_scale_(inv_scale_at(args.scale)) {}

  // Returns the amax of what this thread has written.
  __device__ float write_rows() {
    const bool has_residual = args_.residual != nullptr;
    const bool aligned =
        is_whole<kX>(args_.x) && is_whole<kX>(args_.residual) && is_whole<kX>(args_.sum) && is_whole<kY>(args_.y);
    const bool held = aligned && is_held(args_.cols, sizeof(Element<kX>)) && is_whole<Format::kFp32>(args_.weight) &&
                      is_whole<Format::kFp32>(args_.bias);
    if (!held || (args_.kind == NormKind::kRmsNorm && args_.bias != nullptr)) {
      for_rows([&](int64_t row) {
        const ReadRow<kX, kY> one(args_, team_, row, aligned);
        if (has_residual) one.add_residual();
        const Statistics statistics =
            args_.kind == NormKind::kLayerNorm ? statistics_of<true>(one, sums_) : statistics_of<false>(one, sums_);
        finish(row, statistics, one.write(statistics, inv_scale_));
      });
    } else if (args_.kind == NormKind::kLayerNorm) {
      for_rows([&](int64_t row) { write_held<true>(row); });
    } else {
      for_rows([&](int64_t row) { write_held<false>(row); });
    }
    return amax_;
  }

 private:
  template <Format kFormat>
  __device__ bool is_whole(const void* p) const {
    return p == nullptr || is_aligned(static_cast<const Element<kFormat>*>(p), args_.cols, kRun);
  }

  template <class Body>
  __device__ void for_rows(Body body) {
    // Teams of a block end together.
    const int step = static_cast<int>(gridDim.x) * team_.teams;
    for (int64_t row = int64_t{blockIdx.x} * team_.teams + team_.index; args_.rows > row - team_.index; row += step) {
      body(row);
    }
  }

  template <bool kLayerNorm>
  __device__ void write_held(int64_t row) {
    const HeldRow<kX, kY> one(args_, team_, row);
    const Statistics statistics = statistics_of<kLayerNorm>(one, sums_);
    float amax = one.template write<kLayerNorm>(statistics, inv_scale_);
    if constexpr (format::is_fp8(kY)) {
      if (!(amax * fabsf(inv_scale_) < __int_as_float(0x7f800000))) {
        amax = ReadRow<kX, kY>(args_, team_, row, true).write(statistics, inv_scale_);
      }
    }
    finish(row, statistics, amax);
  }

  __device__ void finish(int64_t row, const Statistics& statistics, float amax) {
    amax_ = larger_magnitude(amax, amax_);
    if (row >= args_.rows || team_.first(0) != 0) return;
    if (args_.mean != nullptr) args_.mean[row] = statistics.mean;
    if (args_.rstd != nullptr) args_.rstd[row] = statistics.rstd;
  }

  const NormForward& args_;
  Team<kRun> team_;
  TeamSum<kRun> sums_;
  float inv_scale_, amax_ = 0;
};

template <Format kX, Format kY>
__device__ void norm_forward(const NormForward& args) {
  __shared__ TeamBuffer<1> buffer;
  raise_team_amax(NormTeam<kX, kY>(args, buffer).write_rows(), args.amax);
}

}  // namespace

#define PLIMSOLL_KERNEL(x, kX, y, kY)                                    \
  extern "C" __global__ void __maxnreg__(registers_of(Format::kX))       \
      norm_forward_##x##_##y(const __grid_constant__ NormForward args) { \
    norm_forward<Format::kX, Format::kY>(args);                          \
  }
#define PLIMSOLL_KERNELS(x, kX) \
  PLIMSOLL_KERNEL(x, kX, x, kX) PLIMSOLL_KERNEL(x, kX, e4m3, kE4m3) PLIMSOLL_KERNEL(x, kX, e5m2, kE5m2)

PLIMSOLL_KERNELS(fp32, kFp32)
PLIMSOLL_KERNELS(bf16, kBf16)
PLIMSOLL_KERNELS(fp16, kFp16)
PLIMSOLL_KERNEL(bf16, kBf16, fp32, kFp32)
PLIMSOLL_KERNEL(fp16, kFp16, fp32, kFp32)

}  // namespace plimsoll::kernels
