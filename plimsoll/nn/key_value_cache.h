// Keys and values of the tokens that an attention layer has seen, for incremental decoding.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace plimsoll::nn {

enum class CacheFormat : uint8_t {
  kAsGiven,
  kBf16,
  kE4m3,  // a scale for each token of each group; no gradient
};

// [batch, tokens, groups, channels] of all tokens so far. Codes are uint8 and have fp32 scales [batch, groups, tokens].
struct CachedTokens {
  at::Tensor key, value;
  at::Tensor key_scale = {}, value_scale = {};
};

class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t capacity, CacheFormat format = CacheFormat::kAsGiven);
  // The cache of one text in memory that texts share: CachedTokens whose batch is pages, of so many tokens each. It has
  // room for none before set_pages().
  KeyValueCache(CachedTokens memory, CacheFormat format);

  // Numbers of the text's pages, int32 [pages], those that it had before being the first of them.
  void set_pages(const at::Tensor& numbers);
  const at::Tensor& pages() const { return pages_; }  // undefined: the memory is its own

  // key, value [batch, seq, groups, channels] of new tokens. What it returns stays valid until the next call. The first
  // call fixes batch and dtype. Of a text in pages, it returns a copy in a row.
  CachedTokens append(const at::Tensor& key, const at::Tensor& value);

  // The same without copying: counts `tokens` more, which the caller writes at the end of what is returned, the memory
  // of capacity() tokens or of all pages. Not before the first append.
  const CachedTokens& grow(int64_t tokens);

  // Makes room for `capacity` tokens, at least as many as there are.
  void reserve(int64_t capacity);
  // Keeps the first `length` tokens of those that were written.
  void set_length(int64_t length);
  // The rows begin .. begin + count - 1 with their first `length` tokens, at least one, in the same memory.
  KeyValueCache rows(int64_t begin, int64_t count, int64_t length) const;

  // Row i goes on where row `rows[i]` stands: rows int64 [batch].
  void reorder(const at::Tensor& rows);

  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  CacheFormat format() const { return format_; }
  void clear() { length_ = 0; }

 private:
  void check_room(int64_t tokens) const;
  void open(const at::Tensor& like);  // room for keys and values like `like`
  CachedTokens tokens_in_a_row(int64_t tokens) const;
  void write_pages(const CachedTokens& row, int64_t from);

  int64_t capacity_;  // tokens
  CacheFormat format_;
  int64_t length_ = 0;
  // Keys and values of `capacity` tokens; capacity comes after groups in memory, so that a head is read in one stream.
  CachedTokens tokens_;
  at::Tensor pages_;
};

}  // namespace plimsoll::nn
