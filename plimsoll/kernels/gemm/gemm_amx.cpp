// The microkernels of tiles: 32 x 32 outputs in four tiles of 16 x 16, TDPBF16PS on BF16 pairs, 16 k dwords a step. The
// step's chains start from zero and are then added to the tile; subnormals are taken and left as zero. Packing and
// epilogue are AVX-512's. A is loaded past L1, where the B panel stays.
#include <immintrin.h>

#include "plimsoll/kernels/gemm/touch.h"
#include "plimsoll/runtime/tile_config.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kStepDwords = 16, kTileDwords = 256;
constexpr int64_t kARowBytes = 64, kBRowBytes = kBPitch * 4, kSumRowBytes = kTileColumns * 4;

// Tiles 0 and 1 are the upper sums, 2 and 3 the lower, 4 and 5 rows of A, 6 and 7 columns of B.
template <bool kLower>
static inline __attribute__((always_inline)) void multiply_upper(const uint32_t* a) {
  _tile_stream_loadd(4, a, kARowBytes);
  if constexpr (kLower) _tile_stream_loadd(5, a + kTileDwords, kARowBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kLower) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Split FP16 is (a + a') * (b + b'): halves as they stand give a * b and a' * b', swapped ones a' * b and a * b'.
template <bool kLower, bool kSplit>
static inline __attribute__((always_inline)) void multiply_step(const uint32_t* a, const uint32_t* b) {
  _tile_loadd(6, b, kBRowBytes);
  _tile_loadd(7, b + kStepDwords, kBRowBytes);
  multiply_upper<kLower>(a);
  if constexpr (kSplit) multiply_upper<kLower>(a + 2 * kTileDwords);
}

template <bool kLower>
static inline __attribute__((always_inline)) void start_sums(const TileProduct& args) {
  if (!args.carry) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kLower) {
      _tile_zero(2);
      _tile_zero(3);
    }
    return;
  }
  _tile_loadd(0, args.tile, kSumRowBytes);
  _tile_loadd(1, args.tile + 16, kSumRowBytes);
  if constexpr (kLower) {
    _tile_loadd(2, args.tile + 16 * kTileColumns, kSumRowBytes);
    _tile_loadd(3, args.tile + 16 * kTileColumns + 16, kSumRowBytes);
  }
}

template <bool kLower>
static inline __attribute__((always_inline)) void store_sums(const TileProduct& args) {
  _tile_stored(0, args.tile, kSumRowBytes);
  _tile_stored(1, args.tile + 16, kSumRowBytes);
  if constexpr (kLower) {
    _tile_stored(2, args.tile + 16 * kTileColumns, kSumRowBytes);
    _tile_stored(3, args.tile + 16 * kTileColumns + 16, kSumRowBytes);
  }
}

template <bool kLower, bool kSplit>
void multiply_tiles(const TileProduct& args) {
  constexpr int64_t kAStep = (kSplit ? 4 : 2) * kTileDwords;
  const int64_t whole = args.k_dwords / kStepDwords, left = args.k_dwords % kStepDwords;
  const uint32_t* a = args.a;
  const uint32_t* b = args.b;
  const char* prefetch = args.prefetch;
  __asm__ volatile("" : : : "memory");  // GCC does not know what tile loads read
  start_sums<kLower>(args);
  for (int64_t step = 0; step < whole; ++step, a += kAStep, b += kStepDwords * kBPitch) {
    // A few rows of what comes next at a time: all at once would keep A and B waiting.
    for (int64_t row = args.rows * step / whole; row < args.rows * (step + 1) / whole; ++row) {
      touch(args.next[0], row);
      touch(args.next[1], row);
    }
    const char* prefetch_end = prefetch + kStepDwords * args.prefetch_step;
    for (const char* line = prefetch; line < prefetch_end; line += 64) _mm_prefetch(line, _MM_HINT_T1);
    prefetch = prefetch_end;
    multiply_step<kLower, kSplit>(a, b);
  }
  if (left > 0) {  // the rows of B after its last are another panel's
    alignas(64) uint32_t last[kStepDwords * kBPitch] = {};
    __builtin_memcpy(last, b, static_cast<size_t>(left * kBPitch) * sizeof(uint32_t));
    __asm__ volatile("" : : "r"(last) : "memory");
    multiply_step<kLower, kSplit>(a, last);
  }
  store_sums<kLower>(args);
}

template <bool kSplit>
void multiply(const TileProduct& args) {
  if (args.rows > 16) {
    multiply_tiles<true, kSplit>(args);
  } else {
    multiply_tiles<false, kSplit>(args);
  }
}

}  // namespace

void load_tiles_amx() { _tile_loadconfig(&runtime::kFullTiles); }
void release_tiles_amx() { _tile_release(); }

void multiply_pairs_amx(const TileProduct& args) { multiply<false>(args); }
void multiply_split_amx(const TileProduct& args) { multiply<true>(args); }

}  // namespace plimsoll::kernels
