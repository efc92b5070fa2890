#include "plimsoll/models/team/low_rank.h"

#include <algorithm>
#include <type_traits>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/models/team/values.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

// A matrix from one of its rows on.
kernels::GemmOperand operand(const at::Tensor& x, int64_t first_row = 0) {
  return {.data = static_cast<const char*>(x.const_data_ptr()) + first_row * x.stride(0) * x.element_size(),
          .format = ops::format_of(x.scalar_type(), "step"),
          .row_stride = x.stride(0),
          .k_stride = x.stride(1)};
}

const char* row_of(const StepRows& rows, int64_t row, int64_t columns) {
  return static_cast<const char*>(rows.x) + row * columns * format::bytes(rows.format);
}

// x A^T of the rows begin .. end of an adapter. inner: of its first row.
void project(const StepLowRank& adapter, const StepRows& rows, int64_t begin, int64_t end, float* inner) {
  const nn::LoraImpl& lora = *adapter.lora;
  const int64_t rank = lora.options.rank, k = lora.in_features;
  for (size_t part = 0; part < lora.a.size(); ++part) {
    kernels::gemm({.a = {.data = row_of(rows, adapter.first_row + begin, k), .format = rows.format, .row_stride = k},
                   .b = operand(lora.a[part]),
                   .m = end - begin,
                   .n = rank,
                   .k = k,
                   .output = inner + begin * adapter.ranks() + static_cast<int64_t>(part) * rank,
                   .output_stride = adapter.ranks()});
  }
}

// wide [rows, columns] += scaling * inner B^T, of `count` rows.
void add_parts(const StepLowRank& adapter, const float* inner, int64_t count, const StepColumns& columns) {
  const nn::LoraImpl& lora = *adapter.lora;
  const int64_t rank = lora.options.rank, width = columns.end - columns.begin;
  for (size_t part = 0; part < lora.b.size(); ++part) {
    const int64_t first = lora.parts[part].first_row;
    const int64_t begin = std::max(columns.begin, first), end = std::min(columns.end, first + lora.parts[part].rows);
    if (begin >= end) continue;
    kernels::gemm({.a = {.data = inner + static_cast<int64_t>(part) * rank, .row_stride = adapter.ranks()},
                   .b = operand(lora.b[part], begin - first),
                   .m = count,
                   .n = end - begin,
                   .k = rank,
                   .output = columns.wide + (begin - columns.begin),
                   .output_stride = width,
                   .epilogue = {.alpha = static_cast<float>(lora.options.scaling()), .accumulate = true}});
  }
}

// convert(values, wide, count) of each row.
template <class Convert>
void each_row(const StepRows& rows, int64_t first_row, int64_t count, const StepColumns& columns, Convert convert) {
  with_values(rows.format, rows.values, [&](const auto* values) {
    using Value = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
    auto* all = static_cast<Value*>(rows.values);
    const int64_t width = columns.end - columns.begin;
    for (int64_t row = 0; row < count; ++row) {
      convert(all + (first_row + row) * columns.stride + columns.begin, columns.wide + row * width, width);
    }
  });
}

}  // namespace

int64_t inner_size(std::span<const StepLowRank> adapters) {
  int64_t size = 0;
  for (const StepLowRank& adapter : adapters) size += adapter.rows * adapter.ranks();
  return size;
}

void project(std::span<const StepLowRank> adapters, const StepRows& rows, float* inner, int64_t index, int64_t parts) {
  int64_t all = 0, before = 0;
  for (const StepLowRank& adapter : adapters) all += adapter.rows;
  const int64_t first = all * index / parts, last = all * (index + 1) / parts;
  for (const StepLowRank& adapter : adapters) {
    const int64_t begin = std::max<int64_t>(first - before, 0), end = std::min(last - before, adapter.rows);
    if (begin < end) project(adapter, rows, begin, end, inner);
    inner += adapter.rows * adapter.ranks();
    before += adapter.rows;
  }
}

void add_low_rank(std::span<const StepLowRank> adapters, const StepRows& rows, const float* inner,
                  const StepColumns& columns) {
  for (const StepLowRank& adapter : adapters) {
    for (int64_t row = 0; row < adapter.rows && columns.begin < columns.end; row += StepColumns::kWideRows) {
      const int64_t count = std::min(StepColumns::kWideRows, adapter.rows - row), first = adapter.first_row + row;
      each_row(rows, first, count, columns, [](const auto* values, float* wide, int64_t width) {
        std::transform(values, values + width, wide, [](auto value) { return static_cast<float>(value); });
      });
      add_parts(adapter, inner + row * adapter.ranks(), count, columns);
      each_row(rows, first, count, columns, [](auto* values, const float* wide, int64_t width) {
        using Value = std::remove_pointer_t<decltype(values)>;
        std::transform(wide, wide + width, values, [](float value) { return static_cast<Value>(value); });
      });
    }
    inner += adapter.rows * adapter.ranks();
  }
}

}  // namespace plimsoll::models
