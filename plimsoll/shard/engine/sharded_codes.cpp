#include "plimsoll/shard/engine/sharded_codes.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/linear/tensor_codes.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::shard {
namespace {

at::Tensor as_row(const at::Tensor& part) { return part.view({1, -1}); }

}  // namespace

bool ShardedCodes::has_recipe() {
  const amp::Fp8Scope scope = amp::current_scope();
  return scope.precision == nullptr && scope.recipe != nullptr && ops::has_tensor_codes(*scope.recipe);
}

std::vector<int32_t> ShardedCodes::amax_bits(const std::vector<at::Tensor>& parts) {
  std::vector<int32_t> bits;
  for (const at::Tensor& part : parts) {
    bits.push_back(std::bit_cast<int32_t>(part.numel() == 0 ? 0.0f : ops::amax(as_row(part))));
  }
  return bits;
}

void ShardedCodes::set_amaxes(std::span<const int32_t> bits) {
  for (size_t i = 0; i < bits.size(); ++i) amaxes_[i] = ops::AmaxSlot::of(std::bit_cast<float>(bits[i]));
  has_amaxes_ = true;
}

bool ShardedCodes::choose() {
  chosen_ = has_recipe();
  if (!chosen_) return false;
  TORCH_INTERNAL_ASSERT(std::exchange(has_amaxes_, false));
  const ops::SharedRecipe recipe = amp::current_recipe();
  for (size_t i = 0; i < states_.size(); ++i) {
    const ops::QuantizeOptions options = *ops::weight_codes(*recipe, *states_[i], amaxes_[i]);
    format_ = options.format;
    scales_[i] = options.scale;
  }
  return true;
}

at::Tensor ShardedCodes::encode(const std::vector<at::Tensor>& parts) const {
  std::vector<at::Tensor> codes;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].numel() == 0) continue;
    codes.push_back(ops::quantize(as_row(parts[i]), {.format = format_, .scale = scales_[i]}).tensor.data.flatten());
  }
  return codes.empty() ? at::empty({0}, at::kByte) : at::cat(codes);
}

void ShardedCodes::give(const at::Tensor& codes, const FlatLayout& layout) const {
  for (size_t i = 0; i < states_.size(); ++i) {
    const FlatEntry& entry = layout.entries()[i];
    // Detached data: autograd, which saved codes in the forward pass, finds those that were gathered since. The values
    // are the same, so no version may differ.
    const at::Tensor matrix = codes.narrow(0, entry.begin, entry.end - entry.begin).view(entry.shape).variable_data();
    states_[i]->weight_source.give({.codes = ops::scaled_codes(matrix, format_, scales_[i]), .amax = amaxes_[i]});
  }
}

void ShardedCodes::take_back() const {
  for (const auto& state : states_) state->weight_source.take_back();
}

}  // namespace plimsoll::shard
