// Cross entropy on a CUDA device. What a logit becomes stands in cross_entropy_element.h; sums are in the CPU's order. A row is read in
// strips of as many chunks as a team holds, once for the sum of its exponentials and once more for its gradient, so it may be of any
// width.
#include "plimsoll/kernels/cross_entropy/cross_entropy_element.h"
#include "plimsoll/kernels/cross_entropy/cross_entropy_launch.h"
#include "plimsoll/kernels/cuda/row_team.cuh"

namespace plimsoll::kernels {
namespace {

// Blocks of a multiprocessor for which registers are left; with fewer registers the assembler would spill.
constexpr int blocks_of_multiprocessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  return 2;
#else
  return kCrossEntropyResident / kTeamThreads;
#endif
}

constexpr int kPieces = kTeamThreads / piece_threads(2);  // the most of a block

__device__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }
__device__ float not_a_number() { return __int_as_float(0x7fffffff); }

__device__ float exponential(float x, float base) {
  return exp2_in_range_of(larger_or_nan(-127.0f, exponent_of(x, base)));
}

// A chunk of logits, which a piece of a team has read.
struct Chunk {
  float reference, sum;  // of the exponentials
  float logits;          // their sum, with label smoothing
};

// Numbers by which a row's gradient follows from its logits: e^(x - reference) scale - shift, and `last` for the target.
struct Gradient {
  int64_t target;
  float reference, scale, shift, last;
};

// Chunks of a row so far.
struct Totals {
  float reference;
  double sum, logits;
};

// Memory of a block. Both sides are written in turn: one barrier a strip is enough.
struct LogitBuffer {
  float largest[2][kPieces];
  Chunk chunks[2][kPieces];
  Totals totals[kPieces];       // by team: of its first thread alone, FP64 being slow on some cards
  Gradient gradients[kPieces];  // by team
};

// The sum of a piece's lanes: chain[k] is this thread's of lane col % 16 + k of chain col / 16, or, of pairs, of lane col % 32 / 2 + k / 2
// of chain 2 (col / 32) + k % 2. Every thread of the piece gets it.
template <bool kPairs, int kRun>
__device__ float sum_of_lanes(const float (&chain)[kRun]) {
  constexpr int kChain = Team<kRun>::kChain, kLanes = kPairs ? 2 : kRun;
  constexpr int kThreads = kSumLanes / kLanes;  // that have the lanes of a chain
  float lane[kLanes];
#pragma unroll
  for (int k = 0; k < kLanes; ++k) {
    if constexpr (kPairs) {
      lane[k] = chain[2 * k] + chain[2 * k + 1];
    } else {
      lane[k] = chain[k] + __shfl_xor_sync(kAllLanes, chain[k], kChain);
    }
    lane[k] += __shfl_xor_sync(kAllLanes, lane[k], kPairs ? kThreads : 2 * kChain);
  }
#pragma unroll
  for (int distance = kThreads / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int k = 0; k < kLanes; ++k) lane[k] += __shfl_xor_sync(kAllLanes, lane[k], distance);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int k = 0; k < distance; ++k) lane[k] += lane[k + distance];
  }
  return lane[0];
}

// A piece's chunk of a strip: what this thread holds of its whole 64 logits. What is left of them is one chain on the CPU, read when it is
// needed by the threads that have the chain's lanes.
template <Format kFormat>
struct HeldLogits {
  using Run = HeldRun<kFormat>;
  static constexpr int kRun = Run::kCount;
  static constexpr bool kPairs = kFormat == Format::kBf16;
  const Element<kFormat>* x;  // of the chunk
  int count, col;             // logits of the chunk, and this thread's first of each 64
  Run runs[kTeamRuns];

  __device__ HeldLogits(const Element<kFormat>* row, int64_t width, int64_t begin, int place, bool aligned)
      : x(row + begin), count(in_reach<kSumBlock>(width - begin)), col(place) {
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) runs[i] = i < blocks() ? Run::at(x + 64 * i + col, kRun, aligned) : Run{};
  }

  __device__ int blocks() const { return count / 64; }  // of 64 logits

  // Decoded values would wait in registers from one use to the next.
  __device__ void forget_values() {
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
#pragma unroll
      for (uint32_t& word : runs[i].raw.words) asm volatile("" : "+r"(word));
    }
  }

  // body(k, i) for the logits i of the rest that chain k of this thread has.
  template <class Body>
  __device__ void for_rest(Body body) const {
    const int begin = 64 * blocks();
    if (begin == count || col >= (kPairs ? 32 : kSumLanes)) return;
    for (int i = begin + (kPairs ? col / 2 : col); i < count; i += kSumLanes) {
#pragma unroll
      for (int k = 0; k < kRun; k += kPairs ? 2 : 1) {
        const int at = kPairs ? i + k / 2 : i + k;
        if (at < count) body(k, at);
      }
    }
  }

  // NaN is passed over.
  __device__ float largest() const {
    float result = minus_infinity();
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      if (i < blocks()) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) result = fmaxf(runs[i][k], result);
      }
    }
    for_rest([&](int, int i) { result = fmaxf(load<kFormat>(x, i), result); });
#pragma unroll
    for (int distance = 64 / kRun / 2; distance > 0; distance /= 2) {
      result = fmaxf(__shfl_xor_sync(kAllLanes, result, distance), result);
    }
    return result;
  }

  __device__ float sum_of_exponentials(float base) const {
    float chain[kRun] = {};
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      if (i < blocks()) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) chain[k] += exponential(runs[i][k], base);
      }
    }
    for_rest([&](int k, int i) { chain[k] += exponential(load<kFormat>(x, i), base); });
    return sum_of_lanes<kPairs>(chain);
  }

  // Chains in order, whatever the format; the rest goes on with all four.
  __device__ float sum() const {
    float chain[kRun] = {};
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      if (i < blocks()) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) chain[k] += runs[i][k];
      }
    }
    const int rest = 64 * blocks() + col;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      if (rest + k < count) chain[k] += load<kFormat>(x, rest + k);
    }
    return sum_of_lanes<false>(chain);
  }

  // grad = e^(x - base) scale - shift.
  __device__ void write(Element<kFormat>* grad, bool aligned, float base, float scale, float shift) const {
    const auto value = [=](float logit) { return exponential(logit, base) * scale - shift; };
#pragma unroll
    for (int i = 0; i < kTeamRuns; ++i) {
      if (i < blocks()) {
        float values[kRun];
#pragma unroll
        for (int k = 0; k < kRun; ++k) values[k] = value(runs[i][k]);
        store_codes<kFormat>(grad + 64 * i + col, kRun, aligned, encode_run<kFormat, true>(values));
      }
    }
    for_rest([&](int, int i) { store_one(grad + i, value(load<kFormat>(x, i))); });
  }

  // Whether this thread writes the gradient of logit i of the chunk.
  __device__ bool writes(int64_t i) const {
    if (i < 0 || i >= count) return false;
    const int at = static_cast<int>(i);
    if (at < 64 * blocks()) return at % 64 / kRun == col / kRun;
    const int lane = at % kSumLanes;
    return kPairs ? col < 32 && lane / 2 == col / 4 : lane / kRun == col / kRun;
  }

  __device__ static void store_one(Element<kFormat>* p, float x) {
    const float two[2] = {x, 0.0f};
    store_codes<kFormat>(p, 1, false, encode_run<kFormat, true>(two));
  }
};

// The rows of a team. Every thread of the block calls its functions.
template <Format kFormat>
class LogitRows {
 public:
  static constexpr int kRun = HeldLogits<kFormat>::kRun;

  __device__ LogitRows(const CrossEntropy& args, LogitBuffer& buffer)
      : args_(args), buffer_(buffer), team_(args.vocabulary), first_(team_.index * team_.pieces) {}

  // Rows of all teams of the block.
  __device__ int64_t blocks() const { return pieces_of(args_.rows, team_.teams); }
  __device__ void run(int64_t block) {
    row_ = block * team_.teams + team_.index;
    const bool is_there = row_ < args_.rows;
    const int64_t target = is_there ? args_.targets[row_] : args_.ignore_index;
    is_read_ = target != args_.ignore_index && target >= 0 && target < args_.vocabulary;
    if (is_there && !is_read_) fill(target == args_.ignore_index ? 0.0f : not_a_number());
    if (team_.teams == 1 && !is_read_) return;  // the block as a whole
    read(target);
    if (args_.grad != nullptr) write();
  }

 private:
  // Worked out anew in each strip, so that they wait in no register.
  __device__ const Element<kFormat>* logits() const {
    return static_cast<const Element<kFormat>*>(args_.logits) + in_this_turn(row_) * args_.logits_stride;
  }
  __device__ Element<kFormat>* grad() const {
    return static_cast<Element<kFormat>*>(args_.grad) + in_this_turn(row_) * args_.grad_stride;
  }
  __device__ int64_t chunk(int strip) const { return int64_t{strip * team_.pieces + team_.piece} * kSumBlock; }
  __device__ int strips() const { return static_cast<int>(team_.strips(args_.vocabulary)); }
  __device__ bool is_first() const { return team_.piece == 0 && team_.col == 0; }

  __device__ HeldLogits<kFormat> hold(int64_t begin) const {
    const auto* x = logits();
    return HeldLogits<kFormat>(x, is_read_ ? args_.vocabulary : 0, begin, team_.col, is_aligned(x, 0, kRun));
  }

  // Without a row to read, or a target: what is left of the row's loss and gradient.
  __device__ void fill(float x) const {
    if (is_first()) args_.loss[row_] = x;
    if (args_.grad == nullptr) return;
    constexpr int kThreads = 64 / kRun;
    auto* grad = this->grad();
    for (int64_t i = team_.piece * kThreads + team_.col / kRun; i < args_.vocabulary; i += team_.pieces * kThreads) {
      HeldLogits<kFormat>::store_one(grad + i, x);
    }
  }

  // The row's loss, and the numbers for its gradient.
  __device__ void read(int64_t target) {
    const float target_logit = is_read_ ? load<kFormat>(logits(), target) : 0.0f;
    if (is_first()) buffer_.totals[team_.index] = {minus_infinity(), 0, 0};
    float reference = minus_infinity();
#pragma unroll 1
    for (int strip = 0; strip < strips(); ++strip) {
      const int before = side_ ^ 1;
      HeldLogits<kFormat> held = hold(chunk(strip));
      const float own = share_reference(held, reference);
      held.forget_values();
      if (strip > 0) add_chunks(before);
      Chunk mine = {own, held.sum_of_exponentials(exponential_base(own)), 0};
      if (args_.label_smoothing != 0.0f) mine.logits = held.sum();
      if (team_.col == 0) buffer_.chunks[side_ ^ 1][first_ + team_.piece] = mine;
    }
    __syncthreads();
    add_chunks(side_ ^ 1);
    if (is_first() && is_read_) finish(target, target_logit);
  }

  __device__ void finish(int64_t target, float target_logit) {
    const Totals& totals = buffer_.totals[team_.index];
    const float smoothing = args_.label_smoothing;
    LogitSums sums = {totals.reference, static_cast<float>(totals.sum), 0.0f};
    if (smoothing != 0.0f) sums.mean = static_cast<float>(totals.logits / static_cast<double>(args_.vocabulary));
    const float weight = args_.class_weight != nullptr ? args_.class_weight[target] : 1.0f;
    args_.loss[row_] = weight * cross_entropy_of(sums, target_logit, smoothing);
    const float factor = weight * args_.grad_factor * (args_.row_factor != nullptr ? args_.row_factor[row_] : 1.0f);
    const float share = smoothing / static_cast<float>(args_.vocabulary), shift = share * factor;
    buffer_.gradients[team_.index] = {target, sums.reference, factor / sums.sum,
                                      shift == 0.0f ? 0.0f : shift,  // -0 would turn the sign of a product of 0
                                      target_gradient_of(sums, target_logit, smoothing, share, factor)};
  }

  __device__ void write() {
    float reference = minus_infinity();
#pragma unroll 1
    for (int strip = 0; strip < strips(); ++strip) {
      const int64_t begin = chunk(strip);
      HeldLogits<kFormat> held = hold(begin);
      const float own = share_reference(held, reference);
      held.forget_values();
      if (!is_read_) continue;
      const Gradient& gradient = buffer_.gradients[team_.index];
      auto* grad = this->grad();
      held.write(grad + begin, is_aligned(grad, 0, kRun), exponential_base(own),
                 exponential(own, gradient.reference) * gradient.scale, gradient.shift);
      if (held.writes(gradient.target - begin)) HeldLogits<kFormat>::store_one(grad + gradient.target, gradient.last);
    }
  }

  // The reference of this thread's chunk. `reference` is that of the chunk before the strip, and becomes that of its last.
  __device__ float share_reference(const HeldLogits<kFormat>& held, float& reference) {
    float(&largest)[kPieces] = buffer_.largest[side_];
    side_ ^= 1;
    const float mine = held.largest();
    if (team_.col == 0) largest[first_ + team_.piece] = mine;
    __syncthreads();
    float own = reference;
    for (int piece = 0; piece < team_.pieces; ++piece) {
      reference = raised_reference(reference, largest[first_ + piece]);
      if (piece == team_.piece) own = reference;
    }
    return own;
  }

  // Adds a strip's chunks, in order.
  __device__ void add_chunks(int side) const {
    if (!is_first()) return;
    Totals totals = buffer_.totals[team_.index];
    for (int piece = 0; piece < team_.pieces; ++piece) {
      const Chunk& chunk = buffer_.chunks[side][first_ + piece];
      if (chunk.reference != totals.reference) {
        totals.sum *= static_cast<double>(exponential(totals.reference, chunk.reference));
        totals.reference = chunk.reference;
      }
      totals.sum += static_cast<double>(chunk.sum);
      totals.logits += static_cast<double>(chunk.logits);
    }
    buffer_.totals[team_.index] = totals;
  }

  const CrossEntropy& args_;
  LogitBuffer& buffer_;
  Team<kRun> team_;
  int first_, side_ = 0;
  int64_t row_ = 0;
  bool is_read_ = false;
};

template <Format kFormat>
__device__ void cross_entropy(const CrossEntropy& args) {
  __shared__ LogitBuffer buffer;
  LogitRows<kFormat> rows(args, buffer);
  for (int64_t block = blockIdx.x; block < rows.blocks(); block += gridDim.x) rows.run(block);
}

}  // namespace

#define PLIMSOLL_KERNEL(x, kX)                                                           \
  extern "C" __global__ void __launch_bounds__(kTeamThreads, blocks_of_multiprocessor()) \
      cross_entropy_##x(const __grid_constant__ CrossEntropy args) {                     \
    cross_entropy<Format::kX>(args);                                                     \
  }

PLIMSOLL_KERNEL(fp32, kFp32)
PLIMSOLL_KERNEL(bf16, kBf16)
PLIMSOLL_KERNEL(fp16, kFp16)

}  // namespace plimsoll::kernels
