// Low-rank adapters of a product, as threads of a team add them to its output: nn::Lora with its bits.
#pragma once

#include <cstdint>
#include <span>

#include "plimsoll/format/format.h"
#include "plimsoll/nn/lora.h"

namespace plimsoll::models {

// Input and output of a product of a step.
struct StepRows {
  const void* x = nullptr;  // [count, in]
  void* values = nullptr;   // [count, columns]
  int64_t count = 0;
  format::Format format = format::Format::kFp32;  // of both
};

// Adapters of rows of a step that follow one another.
struct StepLowRank {
  const nn::LoraImpl* lora = nullptr;  // outlives the step
  int64_t first_row = 0, rows = 0;

  int64_t ranks() const { return lora->options.rank * static_cast<int64_t>(lora->parts.size()); }
};

// FP32 numbers of x A^T of all adapters together.
int64_t inner_size(std::span<const StepLowRank> adapters);

// x A^T, to `inner`: part `index` of `parts` of the rows, by the calling thread alone.
void project(std::span<const StepLowRank> adapters, const StepRows& rows, float* inner, int64_t index, int64_t parts);

// Columns of a product's output that a thread adds to.
struct StepColumns {
  int64_t begin = 0, end = 0, stride = 0;  // stride: columns of the whole output
  // FP32 [kWideRows, end - begin], the thread's own: a sum is rounded once.
  static constexpr int64_t kWideRows = 16;
  float* wide = nullptr;
};
// values += scaling * inner B^T in these columns, by the calling thread alone.
void add_low_rank(std::span<const StepLowRank> adapters, const StepRows& rows, const float* inner,
                  const StepColumns& columns);

}  // namespace plimsoll::models
