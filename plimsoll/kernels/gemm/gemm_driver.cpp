#include "plimsoll/kernels/gemm/gemm_driver.h"

#include <algorithm>
#include <bit>

#include "plimsoll/kernels/gemm/gemm_block.h"
#include "plimsoll/kernels/gemm/scale_at.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kPackGrain = 4;  // panels

enum class BSource {
  kPackedBefore,   // args.packed_b as it is
  kExpandedPairs,  // args.packed_b holds BF16 pairs, the product needs FP32
  kPackedHere,     // a part of the columns at a time, all threads together
  kAsNeeded,       // few rows: a panel at a time, by the thread that multiplies with it
};

// Memory that the calling thread lends to the whole product.
struct SharedScratch {
  float* row_scale;
  float* column_scale;
  float* column_partial;  // nullptr without column_sum
  uint32_t* packed;

  SharedScratch(const Gemm& args, int64_t row_panels, int64_t packed_dwords) {
    const int64_t partials = args.epilogue.column_sum == nullptr ? 0 : row_panels * args.n;
    const int64_t sizes[] = {args.m, args.n, partials, packed_dwords};
    int64_t begin[5] = {};
    for (int i = 0; i < 4; ++i) begin[i + 1] = begin[i] + divide_up(sizes[i], 16) * 16;  // whole cache lines
    char* base = static_cast<char*>(runtime::scratch(runtime::ScratchSlot::kGemmB, static_cast<size_t>(begin[4]) * 4));
    row_scale = reinterpret_cast<float*>(base);
    column_scale = reinterpret_cast<float*>(base + begin[1] * 4);
    column_partial = partials == 0 ? nullptr : reinterpret_cast<float*>(base + begin[2] * 4);
    packed = reinterpret_cast<uint32_t*>(base + begin[3] * 4);
  }
};

// The scales that the epilogue applies, times `factor`.
void fill_scales(const ScaleView& scale, int64_t rows, int64_t k, float factor, float* to) {
  const bool in_epilogue = scale.data != nullptr && !varies_along_k(scale, k);
  for (int64_t i = 0; i < rows; ++i) to[i] = in_epilogue ? factor * scale_at(scale, i, 0) : factor;
}

void pack_chunk(const GemmOperand& b, int64_t n, Range panels, const PackedLayout& layout, const GemmIsa& isa,
                uint32_t* packed) {
  runtime::parallel_for(panels.size(), kPackGrain, [&](int64_t begin, int64_t end) {
    const Range part = {panels.begin + begin, panels.begin + end};
    for (int64_t block = 0; block < layout.k_blocks.count; ++block) {
      pack_b_panels(b, n, part, layout.k_blocks, block, layout.dword, isa, packed + layout.offset(block, begin));
    }
  });
}

void expand_panel(const uint32_t* pairs, Range k, uint32_t* panel) {
  for (int64_t i = 0; i < k.size(); ++i) {
    const uint32_t* from = pairs + i / 2 * kBPitch;
    uint32_t* to = panel + i * kBPitch;
    for (int64_t j = 0; j < kBPitch; ++j) to[j] = i % 2 == 0 ? from[j] << 16 : from[j] & 0xffff0000u;
  }
}

// BF16 pairs to FP32, exactly.
void expand_chunk(const uint32_t* pairs, const PackedLayout& of_pairs, Range panels, const PackedLayout& layout,
                  uint32_t* packed) {
  runtime::parallel_for(panels.size(), kPackGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = 0; block < layout.k_blocks.count; ++block) {
      for (int64_t panel = begin; panel < end; ++panel) {
        expand_panel(pairs + of_pairs.offset(block, panels.begin + panel), layout.k_blocks.block(block),
                     packed + layout.offset(block, panel));
      }
    }
  });
}

void multiply_chunk(Product& product, const ColumnChunk& chunk, int64_t threads) {
  const int64_t columns = chunk.panels.size();
  // A panel packed as needed serves all rows: then they are not divided.
  const Grid grid = chunk.packed == nullptr ? Grid{1, std::min(threads, columns)}
                                            : choose_grid(product.row_panels, product.isa.panel_rows, columns, threads);
  runtime::parallel_for(grid.row_parts * grid.column_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Range rows = part_of(product.row_panels, i / grid.column_parts, grid.row_parts);
      const Range part = part_of(columns, i % grid.column_parts, grid.column_parts);
      multiply_rectangle(product, chunk, rows, {chunk.panels.begin + part.begin, chunk.panels.begin + part.end});
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

}  // namespace

Dword dword_of(const GemmOperand& operand, int64_t k, const GemmIsa& isa) {
  const bool fits_bf16 = operand.format == format::Format::kBf16 || format::is_fp8(operand.format);
  const bool inexact_scale = varies_along_k(operand.scale, k) && operand.scale.format != format::Format::kE8m0;
  return isa.multiply_pairs != nullptr && fits_bf16 && !inexact_scale ? Dword::kBf16Pair : Dword::kFp32;
}

void pack_all_of_b(const GemmOperand& b, int64_t n, const PackedLayout& layout, const GemmIsa& isa, uint32_t* packed) {
  pack_chunk(b, n, {0, layout.panels}, layout, isa, packed);
}

float multiply(const Gemm& args, const GemmIsa& isa) {
  const KBlocks k_blocks(args.k);
  const Dword b_dword = dword_of(args.b, args.k, isa);
  const Dword dword = dword_of(args.a, args.k, isa) == Dword::kBf16Pair ? b_dword : Dword::kFp32;
  const int64_t row_panels = divide_up(args.m, isa.panel_rows), column_panels = divide_up(args.n, kTileColumns);
  const int64_t work = args.m * args.n * args.k;
  const int64_t threads = std::clamp<int64_t>(work / kThreadGrain, 1, runtime::threads());

  const BSource source = args.packed_b != nullptr
                             ? (b_dword == dword ? BSource::kPackedBefore : BSource::kExpandedPairs)
                             : (row_panels <= kBlockPanels ? BSource::kAsNeeded : BSource::kPackedHere);
  const bool whole = source == BSource::kPackedBefore || source == BSource::kAsNeeded;
  const int64_t panel_dwords = dwords_of(args.k, dword) * kBPitch;
  const int64_t chunk_panels = whole ? column_panels : panels_at_a_time(panel_dwords, column_panels);
  const SharedScratch shared(args, row_panels, whole ? 0 : chunk_panels * panel_dwords);
  fill_scales(args.a.scale, args.m, args.k, args.epilogue.alpha, shared.row_scale);
  fill_scales(args.b.scale, args.n, args.k, 1.0f, shared.column_scale);

  Product product = {
      args, isa, k_blocks, dword, row_panels, shared.row_scale, shared.column_scale, shared.column_partial};
  const PackedLayout all = {k_blocks, column_panels, b_dword};
  for (int64_t first = 0; first < column_panels; first += chunk_panels) {
    const Range panels = {first, std::min(first + chunk_panels, column_panels)};
    const PackedLayout layout = {k_blocks, panels.size(), dword};
    ColumnChunk chunk = {panels, shared.packed, layout, first};
    switch (source) {
      case BSource::kPackedBefore:
        chunk.packed = static_cast<const uint32_t*>(args.packed_b);
        break;
      case BSource::kExpandedPairs:
        expand_chunk(static_cast<const uint32_t*>(args.packed_b), all, panels, layout, shared.packed);
        break;
      case BSource::kPackedHere:
        pack_chunk(args.b, args.n, panels, layout, isa, shared.packed);
        break;
      case BSource::kAsNeeded:
        chunk.packed = nullptr;
        break;
    }
    multiply_chunk(product, chunk, threads);
  }
  if (args.epilogue.column_sum != nullptr) sum_columns(product, args.epilogue.column_sum);
  return std::bit_cast<float>(product.amax.load());
}

}  // namespace plimsoll::kernels
