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

void TokenCache::keep(int64_t tokens) {
  for (nn::KeyValueCache& layer : layers_) layer.set_length(tokens);
  lengths_.reset();
}

TokenCache TokenCache::first(int64_t tokens, int64_t capacity) const {
  TokenCache part = *this;
  part.keep(tokens);
  for (nn::KeyValueCache& layer : part.layers_) layer.reserve(capacity);  // moves what is kept to new memory
  return part;
}

int64_t TokenCache::token_bytes() const {
  int64_t bytes = 0;
  for (const nn::KeyValueCache& layer : layers_) bytes += layer.token_bytes();
  return bytes;
}

TokenCache TokenCache::texts(int64_t begin, int64_t count) const {
  TokenCache part(0, {});
  for (const nn::KeyValueCache& layer : layers_) part.layers_.push_back(layer.rows(begin, count, length(begin)));
  return part;
}

}  // namespace plimsoll::models
