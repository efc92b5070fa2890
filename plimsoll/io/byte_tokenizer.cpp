#include "plimsoll/io/byte_tokenizer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace plimsoll::io {

at::Tensor encode_bytes(std::string_view text) {
  at::Tensor tokens = at::empty({static_cast<int64_t>(text.size())}, at::kLong);
  std::transform(text.begin(), text.end(), tokens.mutable_data_ptr<int64_t>(),
                 [](char byte) { return static_cast<int64_t>(static_cast<unsigned char>(byte)); });
  return tokens;
}

}  // namespace plimsoll::io
