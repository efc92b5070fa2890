// Rows that teams of threads pass over several times but read once: a team holds a row in registers, in pieces of kSumBlock
// elements. Of each 64 elements of its piece a thread holds a run of 8 bytes: neighbouring lanes of one chain of simd/row.h, so that
// sums have its order and its bits.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/cuda/amax.cuh"
#include "plimsoll/kernels/cuda/raw_run.cuh"
#include "plimsoll/kernels/cuda/team_launch.h"

namespace plimsoll::kernels {

inline constexpr int kTeamRuns = kSumBlock / 64;  // of a thread

// kBytes of FP32, BF16 or FP16. A NaN of FP16 is any NaN.
template <Format kFormat, int kBytes = 8>
struct HeldRun {
  static constexpr int kCount = kBytes / sizeof(Element<kFormat>);
  Words<kBytes> raw;

  // The first `count` of kCount elements, and 0 for the others. whole: all are there, and aligned.
  __device__ static HeldRun at(const Element<kFormat>* p, int count, bool whole) {
    if constexpr (kFormat == Format::kFp32) {
      return {load_words<kBytes>(reinterpret_cast<const uint32_t*>(p), count, whole)};
    } else {
      return {load_words<kBytes>(p, count, whole)};
    }
  }

  __device__ float operator[](int i) const {
    if constexpr (kFormat == Format::kFp32) {
      return __uint_as_float(raw.words[i]);
    } else if constexpr (kFormat == Format::kBf16) {
      return __uint_as_float(i % 2 == 0 ? raw.words[i / 2] << 16 : raw.words[i / 2] & 0xffff0000);
    } else {
      float value;
      const auto code = static_cast<uint16_t>(raw.words[i / 2] >> (16 * (i % 2)));
      asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
      return value;
    }
  }
};

// Codes of values. kFinite: in FP8, too, none is Inf. A NaN becomes any NaN.
template <Format kFormat, bool kFinite, int kCount>
__device__ inline Words<kCount * sizeof(Element<kFormat>)> encode_run(const float (&x)[kCount]) {
  Words<kCount * sizeof(Element<kFormat>)> result = {};
  if constexpr (kFormat == Format::kFp32) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.words[i] = __float_as_uint(x[i]);
  } else {
    constexpr int kBits = 8 * sizeof(Element<kFormat>);
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      // Conversions to 16 bits have Inf.
      const uint32_t codes = kFinite || !format::is_fp8(kFormat) ? encode_two_finite<Codec<kFormat>>(x[i], x[i + 1])
                                                                 : encode_two<Codec<kFormat>>(x[i], x[i + 1]).bits;
      result.words[i * kBits / 32] |= codes << (i * kBits % 32);
    }
  }
  return result;
}

// Codes to neighbouring elements, of which `count` are there. whole: all are, and aligned.
template <Format kFormat, int kBytes>
__device__ inline void store_codes(Element<kFormat>* p, int count, bool whole, const Words<kBytes>& codes) {
  if constexpr (kBytes > 4) {
    if (whole) {  // in one store, which nvcc does not make of a structure's words
      const uint32_t* const words = codes.words;
      if constexpr (kBytes == 8) {
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(words[0]), "r"(words[1]) : "memory");
      } else {
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                     "r"(words[3])
                     : "memory");
      }
      return;
    }
  }
  if constexpr (kFormat == Format::kFp32) {
    store_words<kBytes>(reinterpret_cast<uint32_t*>(p), count, whole && kBytes <= 4, codes);
  } else {
    store_words<kBytes>(p, count, whole && kBytes <= 4, codes);
  }
}

// The larger; NaN if either is.
__device__ inline float larger_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ inline float larger_magnitude(float x, float amax) { return larger_or_nan(fabsf(x), amax); }

// x, of which the compiler does not know that it is the same in every turn of a loop: what follows from it is worked out when it is
// used, and waits in no register.
__device__ inline int in_this_turn(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ inline int64_t in_this_turn(int64_t x) {
  asm volatile("" : "+l"(x));
  return x;
}

// Place of a thread in its block. kCount: elements of its runs.
template <int kCount>
struct Team {
  static constexpr int kElementBytes = 8 / kCount;
  static constexpr int kChain = kSumLanes / kCount;  // threads of a chain
  int pieces, teams;                                 // of a team, of the block
  int index, piece;                                  // of this thread's team, and of its piece there
  int col;                                           // the first in its piece

  __device__ explicit Team(int64_t cols) : pieces(team_pieces(cols, kElementBytes)) {
    constexpr int kThreads = piece_threads(kElementBytes);
    const int threads = pieces * kThreads, thread = threadIdx.x;
    teams = static_cast<int>(blockDim.x) / threads;
    index = thread / threads;
    piece = thread % threads / kThreads;
    col = thread % kThreads * kCount;
  }

  // Parts of a row that a team can hold, one after another.
  __device__ int64_t strips(int64_t cols) const { return pieces_of(cols, int64_t{pieces} * kSumBlock); }
  // This thread's first column in a strip.
  __device__ int64_t first(int64_t strip) const { return (strip * pieces + piece) * kSumBlock + col; }
};

// Whole runs of FP32 beside those of a row, or `otherwise` where they are not there.
template <int kCount>
__device__ inline Words<4 * kCount> load_floats(const float* p, bool is_there, float otherwise) {
  if (is_there) return *reinterpret_cast<const Words<4 * kCount>*>(p);
  Words<4 * kCount> result;
#pragma unroll
  for (uint32_t& word : result.words) word = __float_as_uint(otherwise);
  return result;
}

// Memory of a block, in which pieces are joined.
template <int kSums>
struct TeamBuffer {
  float blocks[2][kTeamThreads / piece_threads(2)][kSums][kSumLanes];
};

// Joins sums of teams. Every thread of the block calls its functions.
template <int kCount, int kSums = 1>
class TeamSum {
 public:
  __device__ TeamSum(const Team<kCount>& team, TeamBuffer<kSums>& buffer)
      : buffer_(buffer), pieces_(team.pieces), first_(team.index * team.pieces), piece_(team.piece), col_(team.col) {}

  // Adds the blocks of a strip to the lanes of `total`: chain[j] are this thread's sums of sum j.
  __device__ void add(const float (&chain)[kSums][kCount], float (&total)[kSums]) {
    constexpr int kChain = Team<kCount>::kChain;
    auto& blocks = buffer_.blocks[side_];
    side_ ^= 1;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        float sum = chain[j][k];
        sum += __shfl_xor_sync(kAllLanes, sum, kChain);
        sum += __shfl_xor_sync(kAllLanes, sum, 2 * kChain);
        if (col_ < kSumLanes) blocks[first_ + piece_][j][col_ + k] = sum;
      }
    }
    add_blocks(blocks, total);
  }

  // The same where a thread has chain[j][k] of chain 2 (col / 32) + k % 2 in lane col % 32 / 2 + k / 2.
  __device__ void add_pairs(const float (&chain)[kSums][kCount], float (&total)[kSums]) {
    static_assert(kCount == 4);
    auto& blocks = buffer_.blocks[side_];
    side_ ^= 1;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
#pragma unroll
      for (int k = 0; k < kCount; k += 2) {
        float sum = chain[j][k] + chain[j][k + 1];
        sum += __shfl_xor_sync(kAllLanes, sum, 32 / kCount);
        if (col_ < 32) blocks[first_ + piece_][j][(col_ + k) / 2] = sum;
      }
    }
    add_blocks(blocks, total);
  }

  // The sum of the lanes.
  __device__ static float join(float total) {
#pragma unroll
    for (int distance = kSumLanes / 2; distance > 0; distance /= 2) {
      total += __shfl_xor_sync(kAllLanes, total, distance);
    }
    return total;
  }

 private:
  // One barrier is enough: the other side is written before the next, and this side after it.
  __device__ void add_blocks(const float (&blocks)[kTeamThreads / piece_threads(2)][kSums][kSumLanes],
                             float (&total)[kSums]) const {
    __syncthreads();
    for (int piece = 0; piece < pieces_; ++piece) {
#pragma unroll
      for (int j = 0; j < kSums; ++j) total[j] += blocks[first_ + piece][j][threadIdx.x % kSumLanes];
    }
  }

  TeamBuffer<kSums>& buffer_;
  int pieces_, first_, piece_, col_, side_ = 0;
};

struct TeamMaxBuffer {
  int32_t pieces[2][kTeamThreads / piece_threads(2)];
};

// The largest of a team. Every thread of the block calls `of`.
template <int kCount>
class TeamMax {
 public:
  __device__ TeamMax(const Team<kCount>& team, TeamMaxBuffer& buffer)
      : buffer_(buffer), pieces_(team.pieces), first_(team.index * team.pieces), piece_(team.piece), col_(team.col) {}

  __device__ int32_t of(int32_t x) {
    auto& pieces = buffer_.pieces[side_];
    side_ ^= 1;
    x = warp_max<piece_threads(8 / kCount)>(x);
    if (col_ == 0) pieces[first_ + piece_] = x;
    __syncthreads();
    for (int piece = 0; piece < pieces_; ++piece) x = max(x, pieces[first_ + piece]);
    return x;
  }

 private:
  TeamMaxBuffer& buffer_;
  int pieces_, first_, piece_, col_, side_ = 0;
};

// Raises *amax, if there is one, to the largest of the block. Every thread calls it.
__device__ inline void raise_team_amax(float x, float* amax) {
  if (amax == nullptr) return;
  __shared__ int32_t warps[kTeamThreads / kWarp];
  const int warp = threadIdx.x / kWarp, count = blockDim.x / kWarp;
  int32_t largest = warp_max<kWarp>(magnitude(x));
  if (threadIdx.x % kWarp == 0) warps[warp] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < count; ++i) largest = max(largest, warps[i]);
  atomicMax(reinterpret_cast<int32_t*>(amax), largest);
}

}  // namespace plimsoll::kernels
