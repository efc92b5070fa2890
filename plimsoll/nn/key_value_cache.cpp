#include "plimsoll/nn/key_value_cache.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace plimsoll::nn {

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& key, const at::Tensor& value) {
  const int64_t batch = key.size(0), tokens = key.size(1);
  TORCH_CHECK(length_ + tokens <= capacity_, "cache: expected at most ", capacity_ - length_, " tokens more, got ",
              tokens);
  if (length_ == 0) {
    const std::vector<int64_t> sizes = {batch, key.size(2), capacity_, key.size(3)};
    key_ = at::empty(sizes, key.options().requires_grad(false)).transpose(1, 2);
    value_ = at::empty(sizes, value.options().requires_grad(false)).transpose(1, 2);
  }
  TORCH_CHECK(key_.size(0) == batch, "cache: expected a batch of ", key_.size(0), ", got ", batch);
  key_.narrow(1, length_, tokens).copy_(key);
  value_.narrow(1, length_, tokens).copy_(value);
  length_ += tokens;
  return {key_.narrow(1, 0, length_), value_.narrow(1, 0, length_)};
}

}  // namespace plimsoll::nn
