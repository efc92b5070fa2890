#include "plimsoll/nn/key_value_cache.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/nn/checks.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::nn {
namespace {

// Room for the tokens of x [batch, seq, groups, channels], seen as [batch, capacity, groups, channels].
at::Tensor room(const at::Tensor& x, int64_t capacity, at::ScalarType dtype) {
  const std::vector<int64_t> sizes = {x.size(0), x.size(2), capacity, x.size(3)};
  return at::empty(sizes, x.options().dtype(dtype).requires_grad(false)).transpose(1, 2);
}

at::Tensor scale_room(const at::Tensor& x, int64_t capacity) {
  return at::empty({x.size(0), x.size(2), capacity}, x.options().dtype(at::kFloat).requires_grad(false));
}

at::ScalarType dtype_of(CacheFormat format, const at::Tensor& given) {
  switch (format) {
    case CacheFormat::kAsGiven:
      return given.scalar_type();
    case CacheFormat::kBf16:
      return at::kBFloat16;
    case CacheFormat::kE4m3:
      return at::kByte;
  }
  runtime::unexpected("cache: format", static_cast<int>(format));
}

void write_codes(const at::Tensor& x, int64_t at, const at::Tensor& codes, const at::Tensor& scale) {
  const ops::ScaledTensor rows = ops::quantize(x.detach().flatten(0, 2), {.granularity = recipe::kPerRow}).tensor;
  codes.narrow(1, at, x.size(1)).copy_(rows.data.view(x.sizes()));
  scale.narrow(2, at, x.size(1)).copy_(rows.scale.view(x.sizes().slice(0, 3)).transpose(1, 2));
}

}  // namespace

KeyValueCache::KeyValueCache(int64_t capacity, CacheFormat format) : capacity_(capacity), format_(format) {
  check_size("cache", "capacity", capacity, 0);
}

KeyValueCache::KeyValueCache(CachedTokens memory, CacheFormat format)
    : capacity_(0), format_(format), tokens_(std::move(memory)), pages_(at::empty({0}, at::kInt)) {}

void KeyValueCache::set_pages(const at::Tensor& numbers) {
  TORCH_CHECK(pages_.defined() && numbers.numel() * tokens_.key.size(1) >= length_, "cache: expected pages for ",
              length_, " tokens, got ", numbers.numel());
  pages_ = numbers;
  capacity_ = numbers.numel() * tokens_.key.size(1);
}

// The pages that so many tokens are in, one after the other, as a batch of one.
CachedTokens KeyValueCache::tokens_in_a_row(int64_t tokens) const {
  const int64_t page = tokens_.key.size(1);
  const at::Tensor numbers = pages_.slice(0, 0, (tokens + page - 1) / page);
  const auto row_of = [&](const at::Tensor& x) { return x.index_select(0, numbers).flatten(0, 1).unsqueeze(0); };
  const auto scale_of = [&](const at::Tensor& x) {
    return x.defined() ? row_of(x.transpose(1, 2)).transpose(1, 2) : at::Tensor();
  };
  return {row_of(tokens_.key), row_of(tokens_.value), scale_of(tokens_.key_scale), scale_of(tokens_.value_scale)};
}

// The pages that tokens `from` and on are in, as in the row.
void KeyValueCache::write_pages(const CachedTokens& row, int64_t from) {
  const int64_t page = tokens_.key.size(1), first = from / page;
  const at::Tensor numbers = pages_.slice(0, first, row.key.size(1) / page).to(at::kLong);
  const auto write = [&](at::Tensor to, const at::Tensor& x) {
    to.index_copy_(0, numbers, x.squeeze(0).unflatten(0, {-1, page}).slice(0, first));
  };
  write(tokens_.key, row.key);
  write(tokens_.value, row.value);
  if (!row.key_scale.defined()) return;
  write(tokens_.key_scale.transpose(1, 2), row.key_scale.transpose(1, 2));
  write(tokens_.value_scale.transpose(1, 2), row.value_scale.transpose(1, 2));
}

void KeyValueCache::check_room(int64_t tokens) const {
  TORCH_CHECK(tokens >= 0 && tokens <= capacity_ - length_, "cache: expected at most ", capacity_ - length_,
              " tokens more, got ", tokens);
}

void KeyValueCache::reserve(int64_t capacity) {
  TORCH_CHECK(capacity >= length_, "cache: expected room for ", length_, " tokens at least, got ", capacity);
  TORCH_CHECK(!pages_.defined(), "cache: expected pages for ", capacity, " tokens, got for ", capacity_);
  capacity_ = capacity;
  if (length_ == 0) return;
  const auto move = [&](at::Tensor& tensor, int64_t dim, const at::Tensor& wider) {
    wider.narrow(dim, 0, length_).copy_(tensor.narrow(dim, 0, length_));
    tensor = wider;
  };
  const bool codes = tokens_.key_scale.defined();
  const at::ScalarType dtype = tokens_.key.scalar_type();
  if (codes) move(tokens_.key_scale, 2, scale_room(tokens_.key, capacity));
  if (codes) move(tokens_.value_scale, 2, scale_room(tokens_.value, capacity));
  move(tokens_.key, 1, room(tokens_.key, capacity, dtype));
  move(tokens_.value, 1, room(tokens_.value, capacity, dtype));
}

void KeyValueCache::set_length(int64_t length) {
  TORCH_CHECK(length >= 0 && length <= capacity_, "cache: expected 0 to ", capacity_, " tokens, got ", length);
  length_ = length;
}

KeyValueCache KeyValueCache::rows(int64_t begin, int64_t count, int64_t length) const {
  KeyValueCache part = *this;
  part.set_length(length);
  for (at::Tensor* tensor :
       {&part.tokens_.key, &part.tokens_.value, &part.tokens_.key_scale, &part.tokens_.value_scale}) {
    if (tensor->defined()) *tensor = tensor->narrow(0, begin, count);
  }
  return part;
}

void KeyValueCache::open(const at::Tensor& like) {
  const at::ScalarType dtype = dtype_of(format_, like);
  tokens_ = {room(like, capacity_, dtype), room(like, capacity_, dtype)};
  if (format_ != CacheFormat::kE4m3) return;
  tokens_.key_scale = scale_room(like, capacity_);
  tokens_.value_scale = scale_room(like, capacity_);
}

CachedTokens KeyValueCache::append(const at::Tensor& key, const at::Tensor& value) {
  const int64_t batch = key.size(0), tokens = key.size(1);
  check_room(tokens);
  const bool codes = format_ == CacheFormat::kE4m3, in_pages = pages_.defined();
  if (length_ == 0 && !in_pages) open(key);
  const CachedTokens row = in_pages ? tokens_in_a_row(length_ + tokens) : tokens_;
  TORCH_CHECK(row.key.size(0) == batch, "cache: expected a batch of ", row.key.size(0), ", got ", batch);
  if (codes) {
    write_codes(key, length_, row.key, row.key_scale);
    write_codes(value, length_, row.value, row.value_scale);
  } else {
    row.key.narrow(1, length_, tokens).copy_(key);
    row.value.narrow(1, length_, tokens).copy_(value);
  }
  if (in_pages) write_pages(row, length_);
  length_ += tokens;
  CachedTokens all = {row.key.narrow(1, 0, length_), row.value.narrow(1, 0, length_)};
  if (codes) all.key_scale = row.key_scale.narrow(2, 0, length_);
  if (codes) all.value_scale = row.value_scale.narrow(2, 0, length_);
  return all;
}

const CachedTokens& KeyValueCache::grow(int64_t tokens) {
  check_room(tokens);
  length_ += tokens;
  return tokens_;
}

void KeyValueCache::reorder(const at::Tensor& rows) {
  if (length_ == 0) return;
  const auto reorder_first = [&](const at::Tensor& tensor, int64_t dim) {
    if (!tensor.defined()) return;
    at::Tensor used = tensor.narrow(dim, 0, length_);
    used.copy_(used.index_select(0, rows));
  };
  reorder_first(tokens_.key, 1);
  reorder_first(tokens_.value, 1);
  reorder_first(tokens_.key_scale, 2);
  reorder_first(tokens_.value_scale, 2);
}

}  // namespace plimsoll::nn
