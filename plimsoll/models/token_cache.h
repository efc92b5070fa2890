// Keys and values that a decoder-only model has computed of a batch of texts, for each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plimsoll/nn/key_value_cache.h"

namespace plimsoll::models {

struct TokenCacheOptions {
  int64_t capacity = 0;  // tokens that find room at first; extend() makes more
  nn::CacheFormat format = nn::CacheFormat::kAsGiven;
};

class TokenCache {
 public:
  TokenCache(int64_t layers, const TokenCacheOptions& options)
      : layers_(static_cast<size_t>(layers), nn::KeyValueCache(options.capacity, options.format)) {}
  explicit TokenCache(std::vector<nn::KeyValueCache> layers) : layers_(std::move(layers)) {}

  size_t layers() const { return layers_.size(); }
  nn::KeyValueCache& layer(size_t index) { return layers_[index]; }

  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length(); }  // tokens of the longest text
  // Tokens of each text, int64 [batch], of a batch whose texts are not all as long; undefined for another.
  const at::Tensor& lengths() const { return lengths_; }
  int64_t length(int64_t row) const { return lengths_.defined() ? lengths_.const_data_ptr<int64_t>()[row] : length(); }

  int64_t capacity() const { return layers_.empty() ? 0 : layers_.front().capacity(); }
  // Room for `tokens` tokens of each text.
  void reserve(int64_t tokens);
  void clear();
  // nn::KeyValueCache::set_pages() of every layer, for a text in pages.
  void set_pages(std::span<const int32_t> numbers);

  // Keeps of each text as many tokens as `lengths` says, int64 [batch], none of them more than there are places.
  void set_lengths(const at::Tensor& lengths);
  // Keeps so many tokens of each text.
  void keep(int64_t tokens);
  // The texts begin .. begin + count - 1, which are as long as one another. They share memory.
  TokenCache texts(int64_t begin, int64_t count) const;

 private:
  std::vector<nn::KeyValueCache> layers_;
  at::Tensor lengths_;
};

}  // namespace plimsoll::models
