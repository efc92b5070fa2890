#include "plimsoll/kernels/gemm/gemm_driver.h"

#include <algorithm>
#include <bit>

#include "plimsoll/kernels/gemm/gemm_block.h"
#include "plimsoll/kernels/gemm/scale_at.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kPackGrain = 4;       // panels
constexpr int64_t kPackedAtOnce = 512;  // k of a panel that is packed beforehand

enum class BSource {
  kPackedBefore,  // args.packed_b as it is
  kExpanded,  // args.packed_b, decoded, or moved to other places, a part of the columns at a time by all threads together
  kPackedHere,  // B, likewise
  kAsNeeded,    // few rows: a panel at a time, by the thread that multiplies with it
};

// Memory that the calling thread lends to the whole product.
struct SharedScratch {
  float* row_scale;
  float* column_scale;
  float* column_partial;  // nullptr without column_sum
  uint32_t* packed;
  float* tiles;  // nullptr where k comes in one part

  SharedScratch(const Gemm& args, int64_t row_panels, int64_t packed_dwords, int64_t tile_dwords) {
    const int64_t partials = args.epilogue.column_sum == nullptr ? 0 : row_panels * args.n;
    const int64_t sizes[] = {args.m, args.n, partials, packed_dwords, tile_dwords};
    int64_t begin[6] = {};
    for (int i = 0; i < 5; ++i) begin[i + 1] = begin[i] + divide_up(sizes[i], 16) * 16;  // whole cache lines
    char* base = static_cast<char*>(runtime::scratch(runtime::ScratchSlot::kGemmB, static_cast<size_t>(begin[5]) * 4));
    row_scale = reinterpret_cast<float*>(base);
    column_scale = reinterpret_cast<float*>(base + begin[1] * 4);
    column_partial = partials == 0 ? nullptr : reinterpret_cast<float*>(base + begin[2] * 4);
    packed = reinterpret_cast<uint32_t*>(base + begin[3] * 4);
    tiles = tile_dwords == 0 ? nullptr : reinterpret_cast<float*>(base + begin[4] * 4);
  }
};

// Setting of a thread that multiplies, given back before the thread does anything else: tiles in use slow its
// switching.
class Multiplying {
 public:
  explicit Multiplying(const GemmIsa& isa) : leave_(isa.leave) {
    if (isa.enter != nullptr) isa.enter();
  }
  ~Multiplying() {
    if (leave_ != nullptr) leave_();
  }
  Multiplying(const Multiplying&) = delete;
  Multiplying& operator=(const Multiplying&) = delete;

 private:
  void (*leave_)();
};

// The scales that the epilogue applies, times `factor`.
void fill_scales(const GemmOperand& operand, int64_t rows, int64_t k, float factor, float* to) {
  const ScaleView& scale = operand.scale;
  const bool in_epilogue = scales_sums(operand, k);
  if (in_epilogue && scale.block_rows == 1 && scale.format == format::Format::kFp32) {
    // Scales of weights that are codes: as many as there are outputs.
    const auto* of_rows = static_cast<const float*>(scale.data);
    for (int64_t i = 0; i < rows; ++i) to[i] = factor * of_rows[i * scale.row_stride];
    return;
  }
  for (int64_t i = 0; i < rows; ++i) to[i] = in_epilogue ? factor * scale_of_sums(operand, i) : factor;
}

// Panels of the layout, which begins with `first_panel` and `k_blocks`.
void pack_chunk(const GemmOperand& b, int64_t n, const KBlocks& blocks, const ColumnChunk& chunk, const GemmIsa& isa,
                uint32_t* packed) {
  const PackedLayout& layout = chunk.layout;
  runtime::parallel_for(chunk.panels.size(), kPackGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = chunk.k_blocks.begin; block < chunk.k_blocks.end; ++block) {
      const Range k = blocks.block(block);
      pack_columns(b, n, blocks.k, isa,
                   {.panels = {chunk.panels.begin + begin, chunk.panels.begin + end},
                    .k = k,
                    .dword = layout.dword,
                    .to = packed + layout.offset(k.begin - chunk.first_k, begin),
                    .panel_stride = layout.panel_dwords(),
                    .places = chunk.is_stored ? BPlaces{} : places_of(isa, k.size())});
    }
  });
}

void expand_chunk(const ColumnChunk& stored, const KBlocks& blocks, const ColumnChunk& chunk, const GemmIsa& isa,
                  uint32_t* packed) {
  runtime::parallel_for(chunk.panels.size(), kPackGrain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int64_t block = chunk.k_blocks.begin; block < chunk.k_blocks.end; ++block) {
        const Range k = blocks.block(block);
        isa.expand({.k = k.size(),
                    .stored = stored.layout.dword,
                    .dword = chunk.layout.dword,
                    .from = stored.at(k.begin, chunk.panels.begin + panel),
                    .to = packed + chunk.layout.offset(k.begin - chunk.first_k, panel),
                    .places = places_of(isa, k.size())});
      }
    }
  });
}

void multiply_chunk(Product& product, const ColumnChunk& chunk, int64_t threads) {
  const int64_t columns = chunk.panels.size();
  const bool few = product.few;
  // A panel made as needed serves all rows: then they are not divided.
  const bool whole_rows = few || chunk.packed == nullptr || chunk.layout.dword != product.dword;
  const Grid grid = whole_rows ? Grid{1, std::min(threads, columns)}
                               : choose_grid(product.row_panels, product.isa.panel_rows, columns, threads);
  // A thread's rows come in blocks in any case. Where all threads have work, each block is a piece that another can take over.
  const int64_t blocks = divide_up(divide_up(product.row_panels, grid.row_parts), product.block_panels);
  const int64_t row_parts = few || threads < runtime::threads() ? grid.row_parts : grid.row_parts * blocks;
  runtime::parallel_for(row_parts * grid.column_parts, 1, [&](int64_t begin, int64_t end) {
    const Multiplying multiplying(product.isa);
    for (int64_t i = begin; i < end; ++i) {
      const Range rows = part_of(product.row_panels, i % row_parts, row_parts);
      const Range part = part_of(columns, i / row_parts, grid.column_parts);
      const Range panels = {chunk.panels.begin + part.begin, chunk.panels.begin + part.end};
      if (few) {
        multiply_few_rows(product, chunk, panels);
      } else {
        multiply_rectangle(product, chunk, rows, panels);
      }
    }
  });
}

// The row panels' partial sums, added in order.
void sum_columns(const Product& product, float* column_sum) {
  const int64_t n = product.gemm.n;
  runtime::parallel_for(n, 1024, [&](int64_t begin, int64_t end) {
    std::copy(product.column_partial + begin, product.column_partial + end, column_sum + begin);
    for (int64_t panel = 1; panel < product.row_panels; ++panel) {
      const float* partial = product.column_partial + panel * n;
      for (int64_t j = begin; j < end; ++j) column_sum[j] += partial[j];
    }
  });
}

// Whether sums of products may be beyond FP32 where the results are not: codes whose E8M0 scales, one a row, wait for the
// epilogue, times E2M1 codes whose own scales are large.
bool sums_may_overflow(const GemmOperand& codes, const GemmOperand& values, int64_t rows, int64_t k) {
  if (k == 0 || !format::is_fp8(codes.format) || codes.scale.data == nullptr ||
      codes.scale.format != format::Format::kE8m0 || varies_along_k(codes.scale, k) ||
      values.format != format::Format::kE2m1 || values.scale.format != format::Format::kE8m0)
    return false;
  // Codes are below 2^9 and 2^3 (E5M2: 2^16), and k of them are added.
  const int bits = (codes.format == format::Format::kE4m3 ? 9 : 16) + 3 + static_cast<int>(std::bit_width(uint64_t(k)));
  const ScaleView& scale = values.scale;
  const auto* of_blocks = static_cast<const uint8_t*>(scale.data);
  int largest = 0;
  for (int64_t row = 0; row < divide_up(rows, scale.block_rows); ++row) {
    for (int64_t block = 0; block < divide_up(k, scale.block_cols); ++block) {
      largest = std::max<int>(largest, of_blocks[row * scale.row_stride + block * scale.col_stride]);
    }
  }
  return largest - 127 + bits > 127;
}

// The same product. Powers of two: no bit depends on where they are multiplied, unless it overflows or is subnormal.
Gemm within_fp32(Gemm args) {
  if (args.packed_b != nullptr) return args;
  if (sums_may_overflow(args.a, args.b, args.n, args.k)) args.a.scale = folded(args.a.scale);
  if (sums_may_overflow(args.b, args.a, args.m, args.k)) args.b.scale = folded(args.b.scale);
  return args;
}

const GemmIsa& isa_of(Dword dword, const GemmLevel& level) {
  if (dword == Dword::kBf16Pair) return *level.bf16_pair;
  return dword == Dword::kFp16Split ? *level.fp16_split : *level.fp32;
}

}  // namespace

Dword dword_of(const GemmOperand& operand, int64_t k, const GemmLevel& level) {
  if (operand.format == format::Format::kE2m1) {
    return level.bf16_pair != nullptr ? Dword::kBf16Pair : Dword::kFp32;  // with block scales, too
  }
  const bool fits_bf16 = operand.format == format::Format::kBf16 || format::is_fp8(operand.format);
  const bool varies = varies_along_k(operand.scale, k);
  const bool inexact_scale = varies && operand.scale.format != format::Format::kE8m0;
  if (level.bf16_pair != nullptr && fits_bf16 && !inexact_scale) return Dword::kBf16Pair;
  if (level.fp16_split != nullptr && operand.format == format::Format::kFp16 && !varies) return Dword::kFp16Split;
  return Dword::kFp32;
}

Dword common_dword(const GemmOperand& a, const GemmOperand& b, int64_t k, const GemmLevel& level) {
  const Dword of_a = dword_of(a, k, level);
  return of_a == dword_of(b, k, level) ? of_a : Dword::kFp32;
}

Dword stored_dword_of(const GemmOperand& b, int64_t k, const GemmLevel& level) {
  if (b.format != format::Format::kE2m1 && varies_along_k(b.scale, k)) {
    const bool in_groups = b.scale.format == format::Format::kFp32 && b.scale.block_cols % kGroupDepth == 0;
    return b.format == format::Format::kE4m3 && in_groups ? Dword::kE4m3Blocks : dword_of(b, k, level);
  }
  switch (b.format) {
    case format::Format::kBf16:
      return Dword::kBf16Pair;
    case format::Format::kE4m3:
      return Dword::kE4m3Quad;
    case format::Format::kE5m2:
      return Dword::kE5m2Quad;
    case format::Format::kFp32:
      return Dword::kFp32;
    case format::Format::kFp16:
      return level.fp16_split == nullptr ? Dword::kFp16Pair : Dword::kFp16Split;
    case format::Format::kE2m1:
      return b.scale.format == format::Format::kE4m3 ? Dword::kNvfp4Octet : Dword::kMxfp4Octet;
    case format::Format::kE8m0:
      break;
  }
  runtime::unexpected("gemm: format of B", static_cast<int>(b.format));
}

void pack_all_of_b(const GemmOperand& b, int64_t n, const PackedLayout& layout, const GemmLevel& level,
                   uint32_t* packed) {
  const bool split = layout.dword == Dword::kFp16Split;
  const KBlocks blocks(layout.k, kPackedAtOnce);
  pack_chunk(b, n, blocks,
             {.panels = {0, layout.panels}, .k_blocks = {0, blocks.count}, .layout = layout, .is_stored = true},
             split ? *level.fp16_split : *level.fp32, packed);
}

float multiply(const Gemm& asked, const GemmLevel& level) {
  const Gemm args = within_fp32(asked);
  if (args.m == 0 || args.n == 0) {
    if (args.epilogue.column_sum != nullptr) std::fill_n(args.epilogue.column_sum, args.n, 0.0f);
    return 0.0f;
  }
  const Dword dword = common_dword(args.a, args.b, args.k, level), stored = stored_dword_of(args.b, args.k, level);
  const GemmIsa& isa = isa_of(dword, level);
  const GemmTiling& tiling = gemm_tilings().*isa.tiling;
  const KBlocks k_blocks(args.k, tiling.k_block);
  const int64_t block_panels = panels_in(tiling.a_kib * 1024, isa.a_panel_dwords(k_blocks.length, dword) * 4);
  const int64_t row_panels = divide_up(args.m, isa.panel_rows), column_panels = divide_up(args.n, kTileColumns);
  const int64_t work = args.m * args.n * args.k;
  const int64_t threads = std::clamp<int64_t>(work / isa.thread_grain, 1, runtime::threads());

  const bool few = row_panels <= kFewPanels;
  const BSource source = few || row_panels <= block_panels  ? BSource::kAsNeeded
                         : args.packed_b == nullptr         ? BSource::kPackedHere
                         : stored == dword && !isa.halves_b ? BSource::kPackedBefore
                                                            : BSource::kExpanded;
  const bool whole = source == BSource::kPackedBefore || source == BSource::kAsNeeded;
  const int64_t tile_dwords = row_panels * isa.panel_rows * kTileColumns;  // of one panel of B
  const PackedPart part =
      whole ? PackedPart{column_panels, k_blocks.count} : packed_at_a_time(k_blocks, dword, tile_dwords, column_panels);
  const int64_t part_dwords =
      PackedLayout{std::min(part.k_blocks * k_blocks.length, args.k), part.panels, dword}.dwords();
  const SharedScratch shared(args, row_panels, whole ? 0 : part_dwords,
                             part.k_blocks < k_blocks.count ? part.panels * tile_dwords : 0);
  fill_scales(args.a, args.m, args.k, args.epilogue.alpha, shared.row_scale);
  fill_scales(args.b, args.n, args.k, 1.0f, shared.column_scale);

  Product product = {.gemm = args,
                     .isa = isa,
                     .block_panels = block_panels,
                     .k_blocks = k_blocks,
                     .dword = dword,
                     .stored = stored,
                     .row_panels = row_panels,
                     .few = few,
                     .row_scale = shared.row_scale,
                     .column_scale = shared.column_scale,
                     .column_partial = shared.column_partial,
                     .tiles = shared.tiles,
                     .far_scales = FarScales(args, shared.row_scale)};
  const ColumnChunk before = {.panels = {0, column_panels},
                              .k_blocks = {0, k_blocks.count},
                              .packed = static_cast<const uint32_t*>(args.packed_b),
                              .layout = {args.k, column_panels, stored},
                              .is_stored = true};
  if (whole) multiply_chunk(product, before, threads);
  for (int64_t first = 0; !whole && first < column_panels; first += part.panels) {
    const Range panels = {first, std::min(first + part.panels, column_panels)};
    for (int64_t block = 0; block < k_blocks.count; block += part.k_blocks) {
      const Range blocks = {block, std::min(block + part.k_blocks, k_blocks.count)};
      const int64_t k_begin = k_blocks.block(blocks.begin).begin, k_end = k_blocks.block(blocks.end - 1).end;
      const ColumnChunk chunk = {.panels = panels,
                                 .k_blocks = blocks,
                                 .packed = shared.packed,
                                 .layout = {k_end - k_begin, panels.size(), dword},
                                 .first_panel = first,
                                 .first_k = k_begin};
      if (source == BSource::kExpanded) {
        expand_chunk(before, k_blocks, chunk, isa, shared.packed);
      } else {
        pack_chunk(args.b, args.n, k_blocks, chunk, isa, shared.packed);
      }
      multiply_chunk(product, chunk, threads);
    }
  }
  if (args.epilogue.column_sum != nullptr) sum_columns(product, args.epilogue.column_sum);
  return product.amax.value();
}

}  // namespace plimsoll::kernels
