// Softmax on a CUDA device. What an element becomes stands in softmax_element.h; sums are in the CPU's order.
#include "plimsoll/kernels/cuda/row_team.cuh"
#include "plimsoll/kernels/lane_order.h"
#include "plimsoll/kernels/softmax/softmax_element.h"
#include "plimsoll/kernels/softmax/softmax_launch.h"

namespace plimsoll::kernels {
namespace {

// Blocks of a multiprocessor for which registers are left; with fewer registers the assembler would spill.
constexpr int blocks_of(Format format) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  return 1;
#else
  return format == Format::kFp16 ? 1 : kSoftmaxResident / kTeamThreads;
#endif
}

__device__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// A float as an integer of the same order, and back; of NaN none is asked.
__device__ int32_t ordered(float x) {
  const int32_t bits = __float_as_int(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ float of_ordered(int32_t x) { return __int_as_float(x < 0 ? x ^ 0x7fffffff : x); }

// e^(logit - top), which is at most 1.
__device__ float weight_of(float logit, float top) { return exp_in_range_of(larger_or_nan(logit - top, -88.0f)); }

// A row of a team.
template <Format kFormat>
struct SoftmaxRow {
  const SoftmaxForward& args;
  int64_t offset;       // of its first element
  int64_t width, keys;  // all keys, and those that the causal rule leaves; 0 for a team without a row
  const uint8_t* mask;  // of this row, or nullptr

  __device__ SoftmaxRow(const SoftmaxForward& softmax, int64_t row, int64_t rows) : args(softmax) {
    const SoftmaxShape& shape = args.shape;
    offset = row * shape.keys;
    width = keys = row < rows ? shape.keys : 0;
    mask = nullptr;
    if (args.causal == Causal::kNone && args.mask == nullptr) return;
    const int64_t query = row % shape.queries, head = row / shape.queries % shape.heads;
    const int64_t batch = row / shape.queries / shape.heads;
    if (args.causal != Causal::kNone) {
      const int64_t seen = query + 1 + causal_offset(args.causal, shape.queries, shape.keys);
      keys = min(max(seen, int64_t{0}), keys);
    }
    if (args.mask == nullptr) return;
    mask = args.mask + batch * args.mask_batch_stride + head * args.mask_head_stride + query * args.mask_query_stride;
  }

  __device__ const Element<kFormat>* x() const { return static_cast<const Element<kFormat>*>(args.x) + offset; }
  __device__ Element<kFormat>* y() const { return static_cast<Element<kFormat>*>(args.y) + offset; }
  __device__ bool is_masked(int64_t key) const { return mask != nullptr && mask[key] != 0; }
  __device__ float logit(int64_t key) const {
    return is_masked(key) ? minus_infinity() : load<kFormat>(x(), key) * args.scale;
  }
};

// A row that its team holds: first its logits, then their exponentials.
template <Format kFormat>
struct HeldSoftmaxRow : SoftmaxRow<kFormat> {
  using Run = HeldRun<kFormat>;
  static constexpr int kRun = Run::kCount;
  int col;          // of this thread's first run
  int in_piece;     // keys of its piece that are seen
  int left, there;  // elements from `col` to the end of those, if positive, and to the end of all
  bool visible;     // whether the mask leaves this thread a place
  float held[kTeamRuns][kRun];

  __device__ HeldSoftmaxRow(const SoftmaxForward& softmax, const Team<kRun>& team, int64_t row, int64_t rows)
      : SoftmaxRow<kFormat>(softmax, row, rows), col(in_this_turn(team.piece * kSumBlock + team.col)) {
    in_piece = in_reach<kSumBlock>(this->keys - (col - team.col));
    left = in_piece - team.col;
    there = in_reach<kSumBlock>(this->width - col);
    const auto* x = this->x() + col;
    Run runs[kTeamRuns];
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) runs[i] = 64 * i < left ? Run::at(x + 64 * i, kRun, true) : Run{};
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) held[i][k] = runs[i][k] * softmax.scale;
    }
    fill(left, minus_infinity());
    visible = this->mask == nullptr;
    if (this->mask != nullptr) hide();
  }

  // Sets what is held of elements from `end`.
  __device__ void fill(int end, float x) {
    if (end >= 64 * (kTeamRuns - 1) + kRun) return;
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) held[i][k] = 64 * i + k < end ? held[i][k] : x;
    }
  }

  __device__ void hide() {
    const uint8_t* mask = this->mask + col;
    const bool aligned = is_aligned(mask, 0, kRun);
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      const Words<kRun> masked =
          load_words<kRun>(mask + 64 * i, in_reach<kRun>(left - 64 * i), aligned && 64 * i + kRun <= left);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if ((masked.words[k / 4] >> (8 * (k % 4)) & 0xff) != 0) {
          held[i][k] = minus_infinity();
        } else if (64 * i + k < left) {
          visible = true;
        }
      }
    }
  }

  __device__ float top() const {
    float result = minus_infinity();
#pragma unroll
    for (int i = 0; i < kTeamRuns * kRun; ++i) result = fmaxf(held[i / kRun][i % kRun], result);
    return result;
  }

  // The sum of the exponentials. Those that are not there are 0, or NaN where the sum is that anyway.
  __device__ float exponentiate(TeamSum<kRun>& sums, const Team<kRun>& team, float top) {
    float chain[1][kRun] = {}, total[1] = {};
    const int in_order = kFormat == Format::kBf16 ? in_piece / 64 : kTeamRuns;
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        held[i][k] = weight_of(held[i][k], top);
        if (i < in_order) chain[0][k] += held[i][k];
      }
    }
    if constexpr (kFormat == Format::kBf16) {
      // Chain 2 (col / 32) + k % 2 has in lane col % 32 / 2 + k / 2 an element of each 32; of what is left of whole 64, its place.
      if (in_piece > 64 * in_order) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          const int place = 64 * in_order + 16 * (team.col / 32 * 2 + k % 2) + team.col % 32 / 2 + k / 2;
          if (place < in_piece) chain[0][k] += weight_of(this->logit(col - team.col + place), top);
        }
      }
      sums.add_pairs(chain, total);
    } else {
      sums.add(chain, total);
    }
    return sums.join(total[0]);
  }

  __device__ void write(float factor, bool row_visible) {
    auto* y = this->y() + col;
#pragma unroll
    for (int i = 0; i < kTeamRuns * kRun; ++i) held[i / kRun][i % kRun] *= factor;
    fill(row_visible ? left : 0, 0.0f);
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      if (64 * i < there) store_codes<kFormat>(y + 64 * i, kRun, true, encode_run<kFormat, true>(held[i]));
    }
  }
};

// A row of any width and alignment: each pass reads it.
template <Format kFormat>
struct ReadSoftmaxRow : SoftmaxRow<kFormat> {
  static constexpr int kRun = HeldRun<kFormat>::kCount;
  const Team<kRun>& team;
  float highest = minus_infinity();
  bool visible;

  __device__ ReadSoftmaxRow(const SoftmaxForward& softmax, const Team<kRun>& one, int64_t row, int64_t rows)
      : SoftmaxRow<kFormat>(softmax, row, rows), team(one) {
    visible = this->mask == nullptr;
    for_runs(this->keys, [&](int64_t key, int count) {
      for (int k = 0; k < count; ++k) {
        highest = larger_logit(this->logit(key + k), highest);
        visible |= !this->is_masked(key + k);
      }
    });
  }

  // body(key, count) for the runs of this thread in a row of so many keys.
  template <class Body>
  __device__ void for_runs(int64_t keys, Body body) const {
    for (int64_t strip = 0; strip < team.strips(this->args.shape.keys); ++strip) for_strip(strip, keys, body);
  }
  template <class Body>
  __device__ void for_strip(int64_t strip, int64_t keys, Body body) const {
#pragma unroll 1
    for (int i = 0; i < kTeamRuns; ++i) {
      const int64_t key = team.first(strip) + 64 * i;
      const int count = in_reach<kRun>(keys - key);
      if (count == 0) break;
      body(key, count);
    }
  }

  __device__ float top() const { return highest; }

  __device__ float exponentiate(TeamSum<kRun>& sums, const Team<kRun>&, float top) {
    highest = top;
    float total[1] = {};
    for (int64_t strip = 0; strip < team.strips(this->args.shape.keys); ++strip) {
      float chain[1][kRun] = {};
      for_strip(strip, this->keys, [&](int64_t place, int count) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (k >= count) break;
          chain[0][k] += weight_of(this->logit(element_at_place(kFormat, place + k, this->keys)), top);
        }
      });
      sums.add(chain, total);
    }
    return sums.join(total[0]);
  }

  __device__ void write(float factor, bool row_visible) const {
    const int64_t seen = row_visible ? this->keys : 0;
    for_runs(this->width, [&](int64_t key, int count) {
      float value[kRun] = {};
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (key + k < seen) value[k] = weight_of(this->logit(key + k), highest) * factor;
      }
      store_codes<kFormat>(this->y() + key, count, false, encode_run<kFormat, true>(value));
    });
  }
};

template <class Row, int kRun>
__device__ void softmax_row(Row row, const Team<kRun>& team, TeamSum<kRun>& sums, TeamMax<kRun>& tops) {
  const float top = of_ordered(tops.of(ordered(row.top())));
  const bool visible = row.args.mask == nullptr || tops.of(row.visible) != 0;
  const float sum = row.exponentiate(sums, team, top);
  row.write(1.0f / sum, visible);
}

template <Format kFormat>
__device__ void softmax_forward(const SoftmaxForward& args) {
  constexpr int kRun = HeldRun<kFormat>::kCount;
  __shared__ TeamBuffer<1> buffer;
  __shared__ TeamMaxBuffer max_buffer;
  const SoftmaxShape& shape = args.shape;
  const Team<kRun> team(shape.keys);
  TeamSum<kRun> sums(team, buffer);
  TeamMax<kRun> tops(team, max_buffer);
  const bool held = is_held(shape.keys, sizeof(Element<kFormat>)) &&
                    is_aligned(static_cast<const Element<kFormat>*>(args.x), shape.keys, kRun) &&
                    is_aligned(static_cast<const Element<kFormat>*>(args.y), shape.keys, kRun);
  const int64_t rows = shape.batch * shape.heads * shape.queries, blocks = pieces_of(rows, team.teams);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t row = block * team.teams + team.index;
    if (held) {
      softmax_row(HeldSoftmaxRow<kFormat>(args, team, row, rows), team, sums, tops);
    } else {
      softmax_row(ReadSoftmaxRow<kFormat>(args, team, row, rows), team, sums, tops);
    }
  }
}

}  // namespace

#define PLIMSOLL_KERNEL(x, kX)                                                      \
  extern "C" __global__ void __launch_bounds__(kTeamThreads, blocks_of(Format::kX)) \
      softmax_forward_##x(const __grid_constant__ SoftmaxForward args) {            \
    softmax_forward<Format::kX>(args);                                              \
  }

PLIMSOLL_KERNEL(fp32, kFp32)
PLIMSOLL_KERNEL(bf16, kBf16)
PLIMSOLL_KERNEL(fp16, kFp16)

}  // namespace plimsoll::kernels
