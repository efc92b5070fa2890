// GEMM without any instruction set by name: product and sum rounded separately.
#include "plimsoll/kernels/gemm/gemm_epilogue.inc"
#include "plimsoll/kernels/gemm/gemm_pack.inc"

namespace plimsoll::kernels {
namespace {

// kRows x 16 outputs in registers: 4 kRows accumulators of four lanes, sixteen registers in all.
template <int kRows>
PLIMSOLL_INLINE void multiply_block(const TileProduct& args, int64_t row, int64_t column) {
  F32x16 sum[kRows];
  float* tile = args.tile + row * kTileColumns + column;
  for (int i = 0; i < kRows; ++i) sum[i] = args.carry ? load(tile + i * kTileColumns) : zero();
  const float* a = reinterpret_cast<const float*>(args.a) + row;
  const float* b = reinterpret_cast<const float*>(args.b) + column;
  for (int64_t k = 0; k < args.k_dwords; ++k, a += kAPitch, b += kBPitch) {
    const F32x16 lanes = load(b);
    for (int i = 0; i < kRows; ++i) sum[i] = add(sum[i], mul(set(a[i]), lanes));
  }
  for (int i = 0; i < kRows; ++i) store(tile + i * kTileColumns, sum[i]);
}

void multiply(const TileProduct& args) {
  const int64_t columns = args.half_empty ? kTileColumns / 2 : kTileColumns;
  for (int64_t column = 0; column < columns; column += 16) {
    int64_t row = 0;
    for (; row + 2 <= args.rows; row += 2) multiply_block<2>(args, row, column);
    if (row < args.rows) multiply_block<1>(args, row, column);
  }
}

constexpr int64_t kPanelRows = 16;

}  // namespace

extern const GemmIsa kGemmPortable = {.panel_rows = kPanelRows,
                                      .few_rows = 0,
                                      .pack_a = pack_a<kPanelRows>,
                                      .pack_rows = pack_rows,
                                      .pack_b = pack_b,
                                      .expand = expand,
                                      .finish = finish,
                                      .multiply = multiply};

}  // namespace plimsoll::kernels
