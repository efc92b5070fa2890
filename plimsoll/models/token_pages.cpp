#include "plimsoll/models/token_pages.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <utility>
#include <vector>

#include "plimsoll/runtime/pages.h"

namespace plimsoll::models {
namespace {

constexpr int64_t kPartAlignment = 64, kSystemPage = 4096;  // bytes

constexpr int64_t whole_multiple(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// Parts of a page one after the other: [groups, kPageTokens, channels] of keys and of values, scales [groups,
// kPageTokens].
class PageParts {
 public:
  // memory: uint8 [pages, bytes of a page], or undefined, so that bytes are counted alone.
  explicit PageParts(at::Tensor memory) : memory_(std::move(memory)) {}

  nn::CachedTokens take(const nn::CachedTokens& like) {
    nn::CachedTokens tokens{take_tokens(like.key), take_tokens(like.value)};
    if (!like.key_scale.defined()) return tokens;
    tokens.key_scale = take(like.key_scale.scalar_type(), {like.key_scale.size(1), kPageTokens});
    tokens.value_scale = take(like.value_scale.scalar_type(), {like.value_scale.size(1), kPageTokens});
    return tokens;
  }
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor take_tokens(const at::Tensor& like) {
    const at::Tensor part = take(like.scalar_type(), {like.size(2), kPageTokens, like.size(3)});
    return part.defined() ? part.transpose(1, 2) : part;
  }

  at::Tensor take(at::ScalarType dtype, const std::vector<int64_t>& sizes) {
    const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype)), at = bytes_;
    bytes_ += whole_multiple(bytes, kPartAlignment);
    return memory_.defined() ? memory_.narrow(1, at, bytes).view(dtype).unflatten(1, sizes) : at::Tensor();
  }

  at::Tensor memory_;
  int64_t bytes_ = 0;
};

at::Tensor map_memory(int64_t pages, int64_t page_bytes) {
  const auto bytes = static_cast<size_t>(whole_multiple(pages * page_bytes, kSystemPage));
  void* const base = runtime::map_pages(bytes);
  TORCH_CHECK(base != nullptr, "cache: expected ", bytes, " bytes of memory, got none");
  return at::from_blob(
      base, {pages, page_bytes}, [bytes](void* data) { runtime::unmap_pages(data, bytes); }, at::kByte);
}

std::vector<nn::KeyValueCache> layers_in(const at::Tensor& memory, TokenCache& like) {
  PageParts parts(memory);
  std::vector<nn::KeyValueCache> layers;
  for (size_t i = 0; i < like.layers(); ++i) {
    layers.emplace_back(parts.take(like.layer(i).grow(0)), like.layer(i).format());
  }
  return layers;
}

}  // namespace

int64_t TokenPages::page_bytes(TokenCache& like) {
  PageParts parts({});
  for (size_t i = 0; i < like.layers(); ++i) parts.take(like.layer(i).grow(0));
  return parts.bytes();
}

TokenPages::TokenPages(TokenCache& like, int64_t pages) : text_(layers_in(map_memory(pages, page_bytes(like)), like)) {}

}  // namespace plimsoll::models
