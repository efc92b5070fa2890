// Keys and values that a decoder-only model has computed of a batch of texts, for each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plimsoll/nn/key_value_cache.h"

namespace plimsoll::models {

struct TokenCacheOptions {
  std::optional<int64_t> capacity = {};  // tokens; by default the model's context
  nn::CacheFormat format = nn::CacheFormat::kAsGiven;
};

class TokenCache {
 public:
  // capacity: tokens.
  TokenCache(int64_t layers, int64_t capacity, nn::CacheFormat format = nn::CacheFormat::kAsGiven)
      : layers_(static_cast<size_t>(layers), nn::KeyValueCache(capacity, format)) {}

  size_t layers() const { return layers_.size(); }
  nn::KeyValueCache& layer(size_t index) { return layers_[index]; }

  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length(); }  // tokens
  int64_t capacity() const { return layers_.empty() ? 0 : layers_.front().capacity(); }
  void clear() {
    for (nn::KeyValueCache& layer : layers_) layer.clear();
  }

 private:
  std::vector<nn::KeyValueCache> layers_;
};

}  // namespace plimsoll::models
