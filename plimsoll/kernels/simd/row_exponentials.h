// Sum of the exponentials of a row of logits, by which cross entropy and log softmax divide. Chunk by chunk: e = 2^((x -
// reference) log2 e), where the reference is a logit near the largest so far, so that no chunk is passed over for its
// maximum alone.
#pragma once

#include "plimsoll/kernels/simd/lanes64.h"
#include "plimsoll/kernels/simd/math.h"

namespace plimsoll::kernels {

// Logits whose exponentials are relative to one of them and are summed in FP32.
inline constexpr int64_t kLogitChunk = 1024;

constexpr int64_t logit_chunks(int64_t count) { return (count + kLogitChunk - 1) / kLogitChunk; }

namespace {

constexpr int64_t kLogitsAhead = 1024;  // elements that come from memory while others are computed with

// Lanes that are not there are -Inf, whose exponential is 0.
template <format::Format kFormat>
PLIMSOLL_INLINE F32x16 load_logits(const void* p, int64_t i, AllLanes lanes) {
  return load_as<kFormat>(p, i, lanes);
}
template <format::Format kFormat>
PLIMSOLL_INLINE F32x16 load_logits(const void* p, int64_t i, int64_t n) {
  const F32x16 lowest = set(-__builtin_inff());
  const I32x16 absent = xor_i(bits(lowest), bits(keep_n(lowest, n)));
  return from_bits(or_i(bits(load_as<kFormat>(p, i, n)), absent));
}

// NaN is passed over, and is seen in the exponentials instead.
template <format::Format kFormat>
float largest_logit(const void* x, int64_t begin, int64_t end) {
  const F32x16 lowest = set(-__builtin_inff());
  F32x16 running[4] = {lowest, lowest, lowest, lowest};
  int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    const Lanes64 block = load_64<kFormat>(x, i);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) running[k] = max(block.x[k], running[k]);
  }
  for_lanes(end - i, [=, &running](int64_t j, auto lanes) {
    running[0] = max(load_logits<kFormat>(x, i + j, lanes), running[0]);
  });
  return reduce_max(max(max(running[0], running[1]), max(running[2], running[3])));
}

PLIMSOLL_INLINE F32x16 exponential(F32x16 x, F32x16 top) { return exp2_bounded(mul(sub(x, top), set(1.44269504f))); }

// Half of the next row's lines come into L2 in each pass, so that memory is never idle.
template <format::Format kFormat>
PLIMSOLL_INLINE void prefetch_half(const char* half, int64_t i) {
  constexpr int64_t kBytes = format::bytes(kFormat);
  for (int64_t byte = 0; byte < 32 * kBytes; byte += 64) prefetch_to_l2(half, i / 2 * kBytes + byte);
}

// A row of logits, and what is known of its exponentials.
struct LogitRow {
  const char* x;
  const char* next;   // the row after it
  float* e;           // [count], where the exponentials are kept, or nullptr
  float* references;  // [chunks]: what a chunk's exponentials are relative to; with e
  int64_t count;
  float rise;  // excess of a logit over the reference beyond which its chunk is done again, relative to that logit
  float reference = -__builtin_inff();
  double sum = 0;  // of the exponentials relative to reference

  int64_t chunk_end(int64_t begin) const { return count - begin < kLogitChunk ? count : begin + kLogitChunk; }
};

struct ChunkExponentials {
  float sum, largest_logit;
};

// Exponentials of the logits begin .. end - 1, relative to `reference`. Without meaning where a logit is more than a
// few above the reference.
template <format::Format kFormat, bool kKeep>
ChunkExponentials chunk_exponentials(const LogitRow& row, int64_t begin, int64_t end, float reference) {
  constexpr int64_t kBytes = format::bytes(kFormat);
  const char *x = row.x, *next = row.next;
  float* e = row.e;
  const F32x16 base = set(reference), lowest = set(-__builtin_inff());
  F32x16 sum[4] = {zero(), zero(), zero(), zero()}, largest[4] = {lowest, lowest, lowest, lowest};
  int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    const Lanes64 block = load_64<kFormat>(x, i);
    const char* ahead = x + (i + kLogitsAhead) * kBytes;
    for (int64_t byte = 0; byte < 64 * kBytes; byte += 64) __builtin_prefetch(ahead + byte);
    prefetch_half<kFormat>(next, i);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const F32x16 value = exponential(block.x[k], base);
      if constexpr (kKeep) store(e + i + 16 * k, value);
      sum[k] = add(sum[k], value);
      largest[k] = max(block.x[k], largest[k]);
    }
  }
  for_lanes(end - i, [=, &sum, &largest](int64_t j, auto lanes) {
    const F32x16 logits = load_logits<kFormat>(x, i + j, lanes), value = exponential(logits, base);
    if constexpr (kKeep) store(e + i + j, value, lanes);
    sum[0] = add(sum[0], value);
    largest[0] = max(logits, largest[0]);
  });
  return {reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3]))),
          reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])))};
}

template <format::Format kFormat>
ChunkExponentials chunk_exponentials(const LogitRow& row, int64_t begin, int64_t end) {
  // -Inf - -Inf would be NaN.
  const float reference = row.reference == -__builtin_inff() ? 0.0f : row.reference;
  return row.e ? chunk_exponentials<kFormat, true>(row, begin, end, reference)
               : chunk_exponentials<kFormat, false>(row, begin, end, reference);
}

// Fills reference and sum, and e and references where there are any. before(begin, end) runs ahead of each chunk.
template <format::Format kFormat, class Before>
void sum_exponentials(LogitRow& row, Before before) {
  row.reference = largest_logit<kFormat>(row.x, 0, row.chunk_end(0));
  for (int64_t begin = 0; begin < row.count; begin += kLogitChunk) {
    const int64_t end = row.chunk_end(begin);
    before(begin, end);
    ChunkExponentials chunk = chunk_exponentials<kFormat>(row, begin, end);
    if (chunk.largest_logit > row.reference + row.rise) {
      row.sum *= static_cast<double>(first_lane(exponential(set(row.reference), set(chunk.largest_logit))));
      row.reference = chunk.largest_logit;
      chunk = chunk_exponentials<kFormat>(row, begin, end);
    }
    if (row.e) row.references[begin / kLogitChunk] = row.reference;
    row.sum += static_cast<double>(chunk.sum);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
