#include <algorithm>
#include <deque>
#include <vector>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/tensor_pass.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

void quantize_tensors(const QuantizeTensor* args, size_t count, float* amaxes) {
  std::deque<TensorPass> passes;
  std::vector<int64_t> first_tile = {0};  // of each tensor in the common numbering; one more: the total
  int64_t sum_floats = 0, grain = 1;
  for (size_t i = 0; i < count; ++i) {
    const TensorPass& pass = passes.emplace_back(args[i]);
    first_tile.push_back(first_tile.back() + pass.tiles());
    sum_floats += pass.partial_sum_floats();
    grain = std::max(grain, pass.grain());
  }
  float* sums = nullptr;
  if (sum_floats > 0) {
    const size_t bytes = static_cast<size_t>(sum_floats) * sizeof(float);
    sums = static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kReduce, bytes));
  }
  for (TensorPass& pass : passes) {
    pass.set_partial_sums(sums);
    sums += pass.partial_sum_floats();
  }
  runtime::parallel_for(first_tile.back(), grain, [&](int64_t begin, int64_t end) {
    auto owner = std::upper_bound(first_tile.begin(), first_tile.end(), begin) - 1;
    for (int64_t tile = begin; tile < end; ++tile) {
      while (tile >= owner[1]) ++owner;
      TensorPass& pass = passes[static_cast<size_t>(owner - first_tile.begin())];
      const TileRegion region = pass.region(tile - *owner);
      pass.run(region, pass.input(region));
    }
  });
  for (size_t i = 0; i < count; ++i) amaxes[i] = passes[i].finish();
}

float quantize_tensor(const QuantizeTensor& args) {
  float amax = 0;
  quantize_tensors(&args, 1, &amax);
  return amax;
}

}  // namespace plimsoll::kernels
