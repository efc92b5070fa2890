#include "plimsoll/kernels/gemm/gemm_driver.h"

#include <atomic>
#include <bit>
#include <cstring>

#include "plimsoll/kernels/gemm/scale_at.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using runtime::ScratchSlot;

// What all threads of one product share.
struct Product {
  const Gemm& gemm;
  const GemmIsa& isa;
  KBlocks k_blocks;
  Dword dword;
  int64_t row_panels;
  const float* row_scale;     // [m], alpha included
  const float* column_scale;  // [n]
  float* column_partial;      // [row_panels, n] or nullptr
  std::atomic<int32_t> amax = 0;

  void raise_amax(int32_t bits) {
    int32_t seen = amax.load(std::memory_order_relaxed);
    while (seen < bits && !amax.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
};

// Columns [panels.begin, panels.end) of B. `packed` null: each thread packs a panel just before it multiplies with it.
struct ColumnChunk {
  Range panels;
  const uint32_t* packed;
  PackedLayout layout;
  int64_t first_packed_panel;
};

PackPanels b_panels(const GemmOperand& b, int64_t n, Range panels, Range k, Dword dword) {
  return {.operand = &b,
          .row_begin = panels.begin * kTileColumns,
          .row_end = std::min(panels.end * kTileColumns, n),
          .readable_end = n,
          .k_begin = k.begin,
          .k_end = k.end,
          .dword = dword,
          .panel_stride = dwords_of(k.size(), dword) * kBPitch};
}

void pack_b_range(const GemmOperand& b, int64_t n, Range panels, const PackedLayout& layout, int64_t first_packed_panel,
                  const GemmIsa& isa, uint32_t* packed) {
  for (int64_t block = 0; block < layout.k_blocks.count; ++block) {
    PackPanels args = b_panels(b, n, panels, layout.k_blocks.block(block), layout.dword);
    args.fold_scale = varies_along_k(b.scale, layout.k_blocks.k);
    args.panels = packed + layout.offset(block, panels.begin - first_packed_panel);
    isa.pack_b(args);
  }
}

// BF16 pairs to FP32, for a product whose other operand needs FP32. Exact.
void expand_pairs(const uint32_t* pairs, Range k, uint32_t* panel) {
  for (int64_t i = 0; i < k.size(); ++i) {
    const uint32_t* from = pairs + i / 2 * kBPitch;
    uint32_t* to = panel + i * kBPitch;
    for (int64_t j = 0; j < kBPitch; ++j) to[j] = i % 2 == 0 ? from[j] << 16 : from[j] & 0xffff0000u;
  }
}

// The row panels of one A block times all column panels of a rectangle, k block by k block.
class BlockMultiplier {
 public:
  BlockMultiplier(Product& product, const ColumnChunk& chunk, Range row_panels, Range column_panels)
      : product_(product), chunk_(chunk), rows_(row_panels), columns_(column_panels) {
    const int64_t longest = dwords_of(product.k_blocks.length, product.dword);
    const size_t a_dwords = static_cast<size_t>(kBlockPanels * longest * kAPitch);
    const size_t b_dwords = static_cast<size_t>(chunk.packed == nullptr ? longest * kBPitch : 0);
    a_ = static_cast<uint32_t*>(runtime::scratch(ScratchSlot::kGemmA, (a_dwords + b_dwords) * sizeof(uint32_t)));
    b_ = a_ + a_dwords;
    // With one k block a tile is finished at once and reused; else all of them wait for the last block.
    tile_size_ = product.isa.panel_rows * kTileColumns;
    const int64_t tiles = product.k_blocks.count == 1 ? 1 : kBlockPanels * columns_.size();
    tiles_ = static_cast<float*>(
        runtime::scratch(ScratchSlot::kGemmTile, static_cast<size_t>(tiles * tile_size_) * sizeof(float)));
  }

  void run() {
    const int64_t blocks = divide_up(rows_.size(), kBlockPanels);
    for (int64_t block = 0; block < blocks; ++block) {
      const Range part = part_of(rows_.size(), block, blocks);
      block_rows_ = {rows_.begin + part.begin, rows_.begin + part.end};
      for (int64_t k_block = 0; k_block < product_.k_blocks.count; ++k_block) multiply_k_block(k_block);
    }
  }

 private:
  void multiply_k_block(int64_t k_block) {
    k_ = product_.k_blocks.block(k_block);
    k_dwords_ = dwords_of(k_.size(), product_.dword);
    pack_a();
    for (int64_t column = columns_.begin; column < columns_.end; ++column) {
      const uint32_t* b = b_panel(k_block, column);
      for (int64_t row = block_rows_.begin; row < block_rows_.end; ++row) multiply_tile(k_block, row, column, b);
    }
  }

  void pack_a() {
    const Gemm& gemm = product_.gemm;
    const int64_t panel_rows = product_.isa.panel_rows;
    product_.isa.pack_a({.operand = &gemm.a,
                         .row_begin = block_rows_.begin * panel_rows,
                         .row_end = std::min(block_rows_.end * panel_rows, gemm.m),
                         .readable_end = gemm.m,
                         .k_begin = k_.begin,
                         .k_end = k_.end,
                         .fold_scale = varies_along_k(gemm.a.scale, gemm.k),
                         .dword = product_.dword,
                         .panels = a_,
                         .panel_stride = k_dwords_ * kAPitch});
  }

  const uint32_t* b_panel(int64_t k_block, int64_t column) {
    const Gemm& gemm = product_.gemm;
    if (chunk_.packed == nullptr) {
      PackPanels args = b_panels(gemm.b, gemm.n, {column, column + 1}, k_, product_.dword);
      args.fold_scale = varies_along_k(gemm.b.scale, gemm.k);
      args.panels = b_;
      product_.isa.pack_b(args);
      return b_;
    }
    const uint32_t* panel = chunk_.packed + chunk_.layout.offset(k_block, column - chunk_.first_packed_panel);
    return panel;
  }

  void multiply_tile(int64_t k_block, int64_t row_panel, int64_t column_panel, const uint32_t* b) {
    const Gemm& gemm = product_.gemm;
    const int64_t index = row_panel - block_rows_.begin, panels = block_rows_.size();
    const int64_t row = row_panel * product_.isa.panel_rows, column = column_panel * kTileColumns;
    const int64_t rows = std::min(product_.isa.panel_rows, gemm.m - row);
    const bool several = product_.k_blocks.count > 1;
    float* tile = several ? tiles_ + ((column_panel - columns_.begin) * panels + index) * tile_size_ : tiles_;
    // Each row panel brings its share of the next B panel nearer: kBPitch * 4 bytes per k dword, in lines of 64.
    const int64_t step = divide_up(kBPitch * 4, panels);
    const char* next = reinterpret_cast<const char*>(b + k_dwords_ * kBPitch) + index * step * k_dwords_;
    const TileProduct tile_product = {.k_dwords = k_dwords_,
                                      .a = a_ + index * k_dwords_ * kAPitch,
                                      .b = b,
                                      .tile = tile,
                                      .rows = rows,
                                      .carry = k_block > 0,
                                      .prefetch = next,
                                      .prefetch_step = step};
    (product_.dword == Dword::kFp32 ? product_.isa.multiply : product_.isa.multiply_pairs)(tile_product);
    if (k_block + 1 < product_.k_blocks.count) return;
    float* partial = product_.column_partial;
    product_.raise_amax(
        product_.isa.finish({.gemm = &gemm,
                             .row_scale = product_.row_scale,
                             .column_scale = product_.column_scale,
                             .tile = tile,
                             .row = row,
                             .rows = rows,
                             .column = column,
                             .columns = std::min(kTileColumns, gemm.n - column),
                             .column_partial = partial == nullptr ? nullptr : partial + row_panel * gemm.n + column}));
  }

  Product& product_;
  const ColumnChunk& chunk_;
  Range rows_, columns_, block_rows_, k_;
  int64_t k_dwords_ = 0, tile_size_ = 0;
  uint32_t* a_;
  uint32_t* b_;
  float* tiles_;
};

void multiply_chunk(Product& product, const ColumnChunk& chunk, int64_t threads) {
  const int64_t columns = chunk.panels.size();
  // A panel packed on the fly serves one A block: then rows are not divided.
  const Grid grid = chunk.packed == nullptr ? Grid{1, std::min(threads, columns)}
                                            : choose_grid(product.row_panels, product.isa.panel_rows, columns, threads);
  runtime::parallel_for(grid.row_parts * grid.column_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Range rows = part_of(product.row_panels, i / grid.column_parts, grid.row_parts);
      const Range part = part_of(columns, i % grid.column_parts, grid.column_parts);
      BlockMultiplier(product, chunk, rows, {chunk.panels.begin + part.begin, chunk.panels.begin + part.end}).run();
    }
  });
}

// Sums the row panels' partial sums in order.
void sum_columns(const Product& product, float* column_sum) {
  const int64_t n = product.gemm.n;
  runtime::parallel_for(n, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) column_sum[j] = product.column_partial[j];
    for (int64_t panel = 1; panel < product.row_panels; ++panel) {
      const float* partial = product.column_partial + panel * n;
      for (int64_t j = begin; j < end; ++j) column_sum[j] += partial[j];
    }
  });
}

void fill_scales(const ScaleView& scale, int64_t rows, int64_t k, float factor, float* to) {
  const bool in_epilogue = scale.data != nullptr && !varies_along_k(scale, k);
  for (int64_t i = 0; i < rows; ++i) to[i] = in_epilogue ? factor * scale_at(scale, i, 0) : factor;
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Dword dword_of(const GemmOperand& operand, int64_t k, const GemmIsa& isa) {
  const bool fits_bf16 = operand.format == format::Format::kBf16 || format::is_fp8(operand.format);
  const bool inexact_scale = varies_along_k(operand.scale, k) && operand.scale.format != format::Format::kE8m0;
  return isa.multiply_pairs != nullptr && fits_bf16 && !inexact_scale ? Dword::kBf16Pair : Dword::kFp32;
}

void pack_all_of_b(const GemmOperand& b, int64_t n, const PackedLayout& layout, const GemmIsa& isa, uint32_t* packed) {
  runtime::parallel_for(layout.panels, 4, [&](int64_t begin, int64_t end) {
    pack_b_range(b, n, {begin, end}, layout, 0, isa, packed);
  });
}

float multiply(const Gemm& args, const GemmIsa& isa) {
  const KBlocks k_blocks(args.k);
  const Dword b_dword = dword_of(args.b, args.k, isa);
  const Dword dword = dword_of(args.a, args.k, isa) == Dword::kBf16Pair ? b_dword : Dword::kFp32;
  const int64_t row_panels = divide_up(args.m, isa.panel_rows), column_panels = divide_up(args.n, kTileColumns);
  const int64_t work = args.m * args.n * std::max<int64_t>(args.k, 1);
  const int64_t threads = std::clamp<int64_t>(work / kThreadGrain, 1, runtime::threads());

  const bool ready = args.packed_b != nullptr && b_dword == dword;
  const bool on_the_fly = args.packed_b == nullptr && row_panels <= kBlockPanels;
  const int64_t panel_bytes = dwords_of(std::max<int64_t>(args.k, 1), dword) * kBPitch * 4;
  const int64_t chunk_panels =
      ready || on_the_fly ? column_panels : std::clamp(kPackedBytes / panel_bytes, kFewestPackedPanels, column_panels);

  const size_t row_bytes = aligned(static_cast<size_t>(args.m) * sizeof(float));
  const size_t column_bytes = aligned(static_cast<size_t>(args.n) * sizeof(float));
  const size_t partial_bytes =
      args.epilogue.column_sum == nullptr ? 0 : aligned(static_cast<size_t>(row_panels * args.n) * sizeof(float));
  const size_t packed_bytes = ready || on_the_fly ? 0 : static_cast<size_t>(chunk_panels * panel_bytes);
  char* shared = static_cast<char*>(
      runtime::scratch(ScratchSlot::kGemmB, row_bytes + column_bytes + partial_bytes + packed_bytes));
  float* row_scale = reinterpret_cast<float*>(shared);
  float* column_scale = reinterpret_cast<float*>(shared + row_bytes);
  float* partial = reinterpret_cast<float*>(shared + row_bytes + column_bytes);
  uint32_t* packing = reinterpret_cast<uint32_t*>(shared + row_bytes + column_bytes + partial_bytes);
  fill_scales(args.a.scale, args.m, args.k, args.epilogue.alpha, row_scale);
  fill_scales(args.b.scale, args.n, args.k, 1.0f, column_scale);

  Product product = {args,       isa,       k_blocks,     dword,
                     row_panels, row_scale, column_scale, args.epilogue.column_sum == nullptr ? nullptr : partial};
  for (int64_t first = 0; first < column_panels; first += chunk_panels) {
    const Range panels = {first, std::min(first + chunk_panels, column_panels)};
    ColumnChunk chunk = {panels, packing, {k_blocks, panels.size(), dword}, first};
    if (ready) {
      chunk.packed = static_cast<const uint32_t*>(args.packed_b);
    } else if (on_the_fly) {
      chunk.packed = nullptr;
    } else if (args.packed_b != nullptr) {
      const PackedLayout pairs = {k_blocks, column_panels, b_dword};
      runtime::parallel_for(panels.size(), 4, [&](int64_t begin, int64_t end) {
        for (int64_t block = 0; block < k_blocks.count; ++block) {
          for (int64_t panel = begin; panel < end; ++panel) {
            expand_pairs(static_cast<const uint32_t*>(args.packed_b) + pairs.offset(block, first + panel),
                         k_blocks.block(block), packing + chunk.layout.offset(block, panel));
          }
        }
      });
    } else {
      runtime::parallel_for(panels.size(), 4, [&](int64_t begin, int64_t end) {
        pack_b_range(args.b, args.n, {first + begin, first + end}, chunk.layout, first, isa, packing);
      });
    }
    multiply_chunk(product, chunk, threads);
  }
  if (args.epilogue.column_sum != nullptr) sum_columns(product, args.epilogue.column_sum);
  return std::bit_cast<float>(product.amax.load());
}

}  // namespace plimsoll::kernels
