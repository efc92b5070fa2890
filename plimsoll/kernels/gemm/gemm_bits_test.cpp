// Conditions that must not change a bit of the result: threads, batch, packing beforehand, the part of the columns.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "plimsoll/kernels/gemm/gemm_packed.h"
#include "plimsoll/kernels/gemm/gemm_test_support.h"
#include "plimsoll/kernels/gemm/gemm_tiling.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {
namespace {

struct Pair {
  Format a, b;
};
constexpr Pair kPairs[] = {{Format::kFp32, Format::kFp32}, {Format::kBf16, Format::kE4m3},
                           {Format::kFp32, Format::kE5m2}, {Format::kE5m2, Format::kBf16},
                           {Format::kFp16, Format::kFp16}, {Format::kBf16, Format::kFp16},
                           {Format::kBf16, Format::kBf16}};

std::vector<float> rows_of(const std::vector<float>& matrix, int64_t first, int64_t count, int64_t columns) {
  const auto begin = matrix.begin() + first * columns;
  return {begin, begin + count * columns};
}

GemmOperand rows_from(GemmOperand operand, int64_t row) {
  const int64_t bytes = format::bytes(operand.format);
  operand.data = static_cast<const char*>(operand.data) + row * operand.row_stride * bytes;
  return operand;
}

TEST(GemmBits, DoNotDependOnThreads) {
  const int64_t m = 230, n = 170, k = 600;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (const Pair& pair : kPairs) {
      for (bool small : {false, true}) {
        const int64_t rows = small ? 60 : m, columns = small ? 700 : n;
        Operand a(rows, k, pair.a, 1), b(columns, k, pair.b, 2);
        if (format::is_fp8(pair.b)) b.add_scales(1, 32, Format::kE8m0, 3);
        std::vector<float> first, first_sum;
        for (int threads : {1, 2, 3, 7}) {
          ScopedThreads scoped(threads);
          std::vector<float> sum(static_cast<size_t>(columns));
          const std::vector<float> output = product(a, b, rows, columns, k, {.column_sum = sum.data()});
          if (threads == 1) {
            first = output;
            first_sum = sum;
          }
          EXPECT_EQ(output, first) << describe(pair.a, pair.b, rows, columns, k, isa) << " threads " << threads;
          EXPECT_EQ(sum, first_sum) << describe(pair.a, pair.b, rows, columns, k, isa) << " threads " << threads;
        }
      }
    }
  }
}

TEST(GemmBits, DoNotDependOnTheSizesOfBlocks) {
  const int64_t m = 230, n = 170, k = 1100;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (const Pair& pair : kPairs) {
      Operand a(m, k, pair.a, 1), b(n, k, pair.b, 2);
      if (format::is_fp8(pair.b)) b.add_scales(1, 32, Format::kE8m0, 3);
      const std::vector<float> before = product(a, b, m, n, k);
      for (const GemmTiling tiling : {GemmTiling{64, 1}, {128, 24}, {576, 200}, {2048, 4096}}) {
        const ScopedGemmTilings sizes({.fp32 = tiling, .pairs = tiling, .tiles = tiling, .split = tiling});
        EXPECT_EQ(product(a, b, m, n, k), before)
            << describe(pair.a, pair.b, m, n, k, isa) << " " << tiling.k_block << ", " << tiling.a_kib;
      }
    }
  }
}

// Rows of two panels and a little more, where less than two panels of A are to stay in L2.
TEST(GemmBits, OfFewRowsDoNotDependOnTheSizesOfBlocks) {
  const int64_t n = 70, k = 2050;
  const GemmTiling tiling = {2048, 1};
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (const Pair& pair : {Pair{Format::kFp32, Format::kE4m3},
                             {Format::kFp32, Format::kBf16},
                             {Format::kFp32, Format::kFp32},
                             {Format::kBf16, Format::kE4m3}}) {
      Operand b(n, k, pair.b, 2);
      if (format::is_fp8(pair.b)) b.add_scales(1, 0, Format::kFp32, 3);
      std::vector<char> packed(gemm_packed_b_bytes(b.view(), n, k));
      gemm_pack_b(b.view(), n, k, packed.data());
      for (int64_t m : {7, 14, 15, 17, 25, 28, 33}) {
        const Operand a(m, k, pair.a, 1);
        const std::vector<float> before = product(a, b, m, n, k);
        const ScopedGemmTilings sizes({.fp32 = tiling, .pairs = tiling, .tiles = tiling, .split = tiling});
        EXPECT_EQ(product(a, b, m, n, k), before) << describe(pair.a, pair.b, m, n, k, isa);
        EXPECT_EQ(product(a, b, m, n, k, {}, packed.data()), before) << describe(pair.a, pair.b, m, n, k, isa);
      }
    }
  }
}

TEST(GemmBits, OfARowDoNotDependOnItsBatch) {
  const int64_t m = 205, n = 65, k = 1101;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (const Pair& pair : kPairs) {
      const Operand a(m, k, pair.a, 1), b(n, k, pair.b, 2);
      const std::vector<float> all = product(a, b, m, n, k);
      for (int64_t rows : {1, 2, 4, 7, 8, 11, 13, 14, 15, 16, 100, 169}) {
        for (int64_t first : {int64_t{0}, int64_t{5}, m - rows}) {
          std::vector<float> output(static_cast<size_t>(rows * n));
          gemm({.a = rows_from(a.view(), first),
                .b = b.view(),
                .m = rows,
                .n = n,
                .k = k,
                .output = output.data(),
                .output_stride = n});
          EXPECT_EQ(output, rows_of(all, first, rows, n)) << describe(pair.a, pair.b, rows, n, k, isa);
        }
      }
    }
  }
}

// B beyond 32 MiB is packed in parts of 32 panels or more, or, of many more k, in parts of k.
TEST(GemmBits, OfAColumnDoNotDependOnTheColumnsBesideIt) {
  const int64_t m = 230, n = 1060, k = 8400, tail = 43;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const Operand a(m, k, Format::kE4m3, 1), b(n, k, Format::kFp32, 2);
    const std::vector<float> all = product(a, b, m, n, k);
    std::vector<float> output(static_cast<size_t>(m * tail));
    gemm({.a = a.view(),
          .b = rows_from(b.view(), n - tail),
          .m = m,
          .n = tail,
          .k = k,
          .output = output.data(),
          .output_stride = tail});
    for (int64_t i = 0; i < m; ++i) {
      const auto row = all.begin() + (i + 1) * n - tail;
      EXPECT_TRUE(std::equal(row, row + tail, output.begin() + i * tail)) << "row " << i << runtime::name(isa);
    }
  }
}

TEST(GemmBits, OfALongSumAreThoseOfFewRows) {
  const int64_t m = 260, n = 140, k = 105001, few = 5;
  const Operand a(m, k, Format::kBf16, 1), b(n, k, Format::kE4m3, 2, {.layout = Layout::kRowContiguous});
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> all = product(a, b, m, n, k);
    EXPECT_EQ(product(a, b, few, n, k), rows_of(all, 0, few, n)) << runtime::name(isa);
    std::vector<char> packed(gemm_packed_b_bytes(b.view(), n, k));
    gemm_pack_b(b.view(), n, k, packed.data());
    EXPECT_EQ(product(a, b, m, n, k, {}, packed.data()), all) << runtime::name(isa);
  }
}

TEST(GemmBits, PackedBeforehandIsTheSameInOnePartOrSeveral) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (const Pair& pair : kPairs) {
      for (Layout layout : {Layout::kKContiguous, Layout::kRowContiguous}) {
        for (int64_t m : {1, 2, 3, 5, 8, 12, 16, 25, 40, 180}) {
          const int64_t n = 177, k = 1031;
          const Operand a(m, k, pair.a, 1);
          Operand b(n, k, pair.b, 2, {.layout = layout});
          for (Format scale : {Format::kFp32, Format::kE8m0}) {
            if (format::is_fp8(pair.b)) b.add_scales(1, 128, scale, 3);
            const size_t bytes = gemm_packed_b_bytes(b.view(), n, k);
            std::vector<char> packed(bytes + 1, 'g');
            gemm_pack_b(b.view(), n, k, packed.data());
            EXPECT_EQ(packed[bytes], 'g');
            GemmOperand unread = b.view();
            unread.data = nullptr;
            const std::vector<float> expected = product(a, b, m, n, k);
            for (int64_t parts : {1, 3}) {
              std::vector<float> output(static_cast<size_t>(m * n));
              for (int64_t part = 0; part < parts; ++part) {
                const int64_t begin = part * kPackedColumns;
                gemm({.a = a.view(),
                      .b = unread,
                      .m = m,
                      .n = part + 1 == parts ? n - begin : kPackedColumns,
                      .k = k,
                      .output = output.data() + begin,
                      .output_stride = n,
                      .packed_b = gemm_packed_from(packed.data(), unread, k, begin)});
              }
              EXPECT_EQ(output, expected) << parts << " parts, " << describe(pair.a, pair.b, m, n, k, isa);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::testing
