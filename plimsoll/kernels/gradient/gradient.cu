// The pass over gradients on a CUDA device. A team of threads takes a block of elements: each adds up kGradientRun of its chains, so
// that sums have the order of gradient_loops.inc and its bits.
#include "plimsoll/kernels/cuda/row_team.cuh"
#include "plimsoll/kernels/gradient/gradient_launch.h"

namespace plimsoll::kernels {
namespace {

constexpr int kRun = kGradientRun;

// Part of a tensor, the first `count` elements of which are looked at.
struct Piece {
  void* data;  // of the tensor
  Format format;
  int64_t index;  // in the tensor
  int count;
};

__device__ Piece piece_at(const GradientTable& table, uint32_t piece, int whole) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.entries[middle].first <= piece ? low : high) = middle;
  }
  const GradientEntry& entry = table.entries[low];
  const uint32_t end = high < table.count ? table.entries[high].first : table.pieces;
  return {entry.data, static_cast<Format>(entry.format), static_cast<int64_t>(piece - entry.first),
          piece + 1 == end ? static_cast<int>(entry.tail) : whole};
}

// Part of the sums of a block that one thread adds up.
struct ChainSums {
  double chain[kRun] = {};
  int non_finite = 0;

  __device__ void add(int k, float y) {
    const double wide = y;
    chain[k] = fma(wide, wide, chain[k]);  // the square is exact
    if (!(fabsf(y) < __int_as_float(0x7f800000))) ++non_finite;
  }

  // The sums of the team's threads, for each of them. Every lane of the warp calls it.
  __device__ GradientBlockSum total() {
#pragma unroll
    for (int distance = kGradientTeam / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (double& sum : chain) sum += __shfl_xor_sync(kAllLanes, sum, distance);
      non_finite += __shfl_xor_sync(kAllLanes, non_finite, distance);
    }
    return {chain[0] + chain[1], non_finite};
  }
};

// kWhole: all kGradientBlock elements are there, and aligned.
template <Format kFormat, bool kWhole, bool kWrite, bool kSum>
__device__ void pass_rows(Element<kFormat>* p, int count, bool aligned, float scale, ChainSums& sums) {
  using Run = HeldRun<kFormat, kRun * sizeof(Element<kFormat>)>;
  constexpr int kRows = kWhole ? 64 / sizeof(Run) : 4;  // that a thread asks for before it waits
  const int col = threadIdx.x % kGradientTeam * kRun;
#pragma unroll 1
  for (int row = 0; row * kGradientLanes < count; row += kRows) {
    Run runs[kRows];
    int there[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = (row + i) * kGradientLanes + col;
      there[i] = kWhole ? kRun : in_reach<kRun>(count - at);
      runs[i] = Run::at(p + at, there[i], kWhole || (aligned && there[i] == kRun));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float y[kRun];
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        y[k] = runs[i][k] * scale;
        if (kSum && k < there[i]) sums.add(k, y[k]);
      }
      if (kWrite) {
        store_codes<kFormat>(p + (row + i) * kGradientLanes + col, there[i], kWhole || (aligned && there[i] == kRun),
                             encode_run<kFormat, true>(y));
      }
    }
  }
}

template <Format kFormat, bool kWrite, bool kSum>
__device__ void pass_block(const Piece& piece, float scale, ChainSums& sums) {
  auto* const p = static_cast<Element<kFormat>*>(piece.data) + piece.index * kGradientBlock;
  const bool aligned = is_aligned(p, 0, kRun);
  if (aligned && piece.count == kGradientBlock) {
    pass_rows<kFormat, true, kWrite, kSum>(p, kGradientBlock, true, scale, sums);
  } else {
    pass_rows<kFormat, false, kWrite, kSum>(p, piece.count, aligned, scale, sums);
  }
}

template <bool kWrite, bool kSum>
__device__ void pass(const GradientTable& table, float scale, GradientBlockSum* sums) {
  for (uint32_t first = blockIdx.x * kGradientTeams; first < table.pieces; first += gridDim.x * kGradientTeams) {
    const uint32_t block = first + threadIdx.x / kGradientTeam;
    ChainSums chains;
    if (block < table.pieces) {
      const Piece piece = piece_at(table, block, kGradientBlock);
      if (piece.format == Format::kFp32) {
        pass_block<Format::kFp32, kWrite, kSum>(piece, scale, chains);
      } else if (piece.format == Format::kBf16) {
        pass_block<Format::kBf16, kWrite, kSum>(piece, scale, chains);
      } else {
        pass_block<Format::kFp16, kWrite, kSum>(piece, scale, chains);
      }
    }
    if constexpr (kSum) {
      const GradientBlockSum total = chains.total();
      if (block < table.pieces && threadIdx.x % kGradientTeam == 0) sums[block] = total;
    }
  }
}

// A warp has the sums of a group, one a lane, and every lane adds them all in order.
__device__ void add_groups(const GradientBlockSum* sums, int64_t blocks, GradientGroupSum* groups) {
  const int lane = threadIdx.x % kWarp;
  const int64_t warps = int64_t{gridDim.x} * (kGradientPassThreads / kWarp);
  int64_t group = int64_t{blockIdx.x} * (kGradientPassThreads / kWarp) + threadIdx.x / kWarp;
  for (; group * kGradientGroup < blocks; group += warps) {
    double sum = 0;
    int non_finite = 0;
    uint32_t bad = ~uint32_t{0};  // the first block of the lane's that holds what is not finite
    for (int begin = 0; begin < kGradientGroup && group * kGradientGroup + begin < blocks; begin += kWarp) {
      const int64_t block = group * kGradientGroup + begin + lane;
      GradientBlockSum mine = {};
      if (block < blocks) mine = sums[block];
#pragma unroll
      for (int other = 0; other < kWarp; ++other) {
        sum += __shfl_sync(kAllLanes, mine.sum_of_squares, other);  // 0 of those that are not there
      }
      non_finite += static_cast<int>(mine.non_finite);
      if (mine.non_finite > 0) bad = min(bad, static_cast<uint32_t>(begin + lane));
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      non_finite += __shfl_xor_sync(kAllLanes, non_finite, distance);
      bad = min(bad, __shfl_xor_sync(kAllLanes, bad, distance));
    }
    if (lane == 0) groups[group] = {sum, non_finite, static_cast<int32_t>(bad)};  // none: -1
  }
}

__device__ float element_of(const Piece& piece, int64_t i) {
  if (piece.format == Format::kFp32) return load<Format::kFp32>(piece.data, i);
  if (piece.format == Format::kBf16) return load<Format::kBf16>(piece.data, i);
  return load<Format::kFp16>(piece.data, i);
}

__device__ void count_exponents(const GradientTable& table, int64_t distance, int32_t* counts) {
  __shared__ int32_t bins[kGradientBins];
  for (int i = threadIdx.x; i < kGradientBins; i += kGradientPassThreads) bins[i] = 0;
  __syncthreads();
  constexpr uint32_t kWarps = kGradientPassThreads / kWarp;
  for (uint32_t p = blockIdx.x * kWarps + threadIdx.x / kWarp; p < table.pieces; p += gridDim.x * kWarps) {
    const Piece piece = piece_at(table, p, kGradientSampleRun);
    for (int i = threadIdx.x % kWarp; i < piece.count; i += kWarp) {
      const int32_t code = magnitude(element_of(piece, piece.index * distance + i));
      if (code != 0 && code < 0x7f800000) atomicAdd(&bins[code >> 23], 1);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kGradientBins; i += kGradientPassThreads) {
    if (bins[i] != 0) atomicAdd(&counts[i], bins[i]);
  }
}

}  // namespace

#define PLIMSOLL_KERNEL(name, kWrite, kSum)                                                    \
  extern "C" __global__ void __launch_bounds__(kGradientPassThreads)                           \
      name(const __grid_constant__ GradientTable table, float scale, GradientBlockSum* sums) { \
    pass<kWrite, kSum>(table, scale, sums);                                                    \
  }

PLIMSOLL_KERNEL(gradient_read, false, true)
PLIMSOLL_KERNEL(gradient_write, true, true)
PLIMSOLL_KERNEL(gradient_scale, true, false)

extern "C" __global__ void __launch_bounds__(kGradientPassThreads)
    gradient_groups(const GradientBlockSum* sums, int64_t blocks, GradientGroupSum* groups) {
  add_groups(sums, blocks, groups);
}

extern "C" __global__ void __launch_bounds__(kGradientPassThreads)
    gradient_histogram(const __grid_constant__ GradientTable table, int64_t distance, int32_t* counts) {
  count_exponents(table, distance, counts);
}

}  // namespace plimsoll::kernels
