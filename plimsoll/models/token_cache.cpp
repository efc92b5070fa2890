#include "plimsoll/models/token_cache.h"

namespace plimsoll::models {

void TokenCache::reserve(int64_t tokens) {
  if (tokens <= capacity()) return;
  for (nn::KeyValueCache& layer : layers_) layer.reserve(tokens);
}

void TokenCache::clear() {
  for (nn::KeyValueCache& layer : layers_) layer.clear();
  lengths_.reset();
}

void TokenCache::set_lengths(const at::Tensor& lengths) {
  const auto longest = lengths.max().item<int64_t>();
  for (nn::KeyValueCache& layer : layers_) layer.set_length(longest);
  lengths_ = lengths.eq(longest).all().item<bool>() ? at::Tensor() : lengths;
}

TokenCache TokenCache::texts(int64_t begin, int64_t count) const {
  TokenCache part(0, {});
  for (const nn::KeyValueCache& layer : layers_) part.layers_.push_back(layer.rows(begin, count, length(begin)));
  return part;
}

}  // namespace plimsoll::models
