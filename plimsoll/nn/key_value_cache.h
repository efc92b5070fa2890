// Keys and values of the tokens that an attention layer has seen, for incremental decoding.
#pragma once

#include <ATen/core/TensorBody.h>

#include <utility>

namespace plimsoll::nn {

class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t capacity) : capacity_(capacity) {}

  // key, value [batch, seq, groups, channels] of new tokens. Returns those of all tokens so far, which stay valid until
  // the next call. The first call fixes batch and dtype.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& key, const at::Tensor& value);

  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }

 private:
  int64_t capacity_;  // tokens
  int64_t length_ = 0;
  // [batch, capacity, groups, channels]; in memory capacity comes after groups, so that a head is read in one stream.
  at::Tensor key_, value_;
};

}  // namespace plimsoll::nn
