#include "plimsoll/models/token_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace plimsoll::models {

void TokenCache::reserve(int64_t tokens) {
  if (tokens <= capacity()) return;
  for (nn::KeyValueCache& layer : layers_) layer.reserve(tokens);
}

void TokenCache::clear() {
  for (nn::KeyValueCache& layer : layers_) layer.clear();
  lengths_.reset();
}

void TokenCache::set_pages(std::span<const int32_t> numbers) {
  const at::Tensor pages = at::empty({static_cast<int64_t>(numbers.size())}, at::kInt);
  std::ranges::copy(numbers, pages.mutable_data_ptr<int32_t>());
  for (nn::KeyValueCache& layer : layers_) layer.set_pages(pages);
}

void TokenCache::set_lengths(const at::Tensor& lengths) {
  const auto longest = lengths.max().item<int64_t>();
  for (nn::KeyValueCache& layer : layers_) layer.set_length(longest);
  lengths_ = lengths.eq(longest).all().item<bool>() ? at::Tensor() : lengths;
}

void TokenCache::keep(int64_t tokens) {
  for (nn::KeyValueCache& layer : layers_) layer.set_length(tokens);
  lengths_.reset();
}

TokenCache TokenCache::texts(int64_t begin, int64_t count) const {
  TokenCache part(0, {});
  for (const nn::KeyValueCache& layer : layers_) part.layers_.push_back(layer.rows(begin, count, length(begin)));
  return part;
}

}  // namespace plimsoll::models
