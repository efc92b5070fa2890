// GEMM on AVX2 and FMA: 6 x 16 outputs in registers, two such blocks down a panel of 12 rows and two across. Where the
// halves of B lie apart, each is a stream without gaps: of lines that are read in turns prefetchers bring the others, too.
#include "plimsoll/kernels/gemm/gemm_epilogue.inc"
#include "plimsoll/kernels/gemm/gemm_few_avx2.inc"
#include "plimsoll/kernels/gemm/gemm_pack.inc"

namespace plimsoll::kernels {
namespace {

template <int kRows, int64_t kPitch>
void multiply_block(const TileProduct& args, int64_t row, int64_t column) {
  __m256 sum[kRows][2];
  float* tile = args.tile + row * kTileColumns + column;
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = args.carry ? _mm256_loadu_ps(tile + i * kTileColumns) : _mm256_setzero_ps();
    sum[i][1] = args.carry ? _mm256_loadu_ps(tile + i * kTileColumns + 8) : _mm256_setzero_ps();
  }
  const float* a = reinterpret_cast<const float*>(args.a) + row;
  const float* b = reinterpret_cast<const float*>(args.b) + column / 16 * args.b_places.half;
#pragma GCC unroll 4
  for (int64_t k = 0; k < args.k_dwords; ++k, a += kAPitch, b += kPitch) {
    const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 lanes = _mm256_broadcast_ss(a + i);
      sum[i][0] = _mm256_fmadd_ps(lanes, b0, sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(lanes, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    _mm256_storeu_ps(tile + i * kTileColumns, sum[i][0]);
    _mm256_storeu_ps(tile + i * kTileColumns + 8, sum[i][1]);
  }
}

using MultiplyBlock = void (*)(const TileProduct&, int64_t row, int64_t column);
template <int64_t kPitch>
constexpr MultiplyBlock kMultiplyBlock[] = {
    nullptr,
    multiply_block<1, kPitch>,
    multiply_block<2, kPitch>,
    multiply_block<3, kPitch>,
    multiply_block<4, kPitch>,
    multiply_block<5, kPitch>,
    multiply_block<6, kPitch>,
};

template <int64_t kPitch>
void multiply_panel(const TileProduct& args) {
  // The rows of a panel share cache lines, and both blocks down the half of B.
  const int64_t columns = args.half_empty ? kTileColumns / 2 : kTileColumns;
  for (int64_t column = 0; column < columns; column += 16) {
    for (int64_t row = 0; row < args.rows; row += 6) {
      kMultiplyBlock<kPitch>[at_most(args.rows - row, 6)](args, row, column);
    }
  }
}

void multiply(const TileProduct& args) {
  if (args.b_places.pitch == kBPitch) return multiply_panel<kBPitch>(args);
  multiply_panel<kBPitch / 2>(args);
}

constexpr int64_t kPanelRows = 12;

}  // namespace

extern const GemmIsa kGemmAvx2 = {.panel_rows = kPanelRows,
                                  .few_rows = kMostFewRows,
                                  .halves_b = true,
                                  .pack_a = pack_a<kPanelRows>,
                                  .pack_rows = pack_rows,
                                  .pack_b = pack_b,
                                  .expand = expand,
                                  .finish = finish,
                                  .multiply = multiply,
                                  .multiply_few = multiply_few_rows};

}  // namespace plimsoll::kernels
