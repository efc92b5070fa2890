// The encoder or the decoder of a T5, and what a decoder keeps while it generates.
#pragma once

#include <vector>

#include "plimsoll/models/t5/block.h"

namespace plimsoll::models {

// An encoder's output and which of its places are padding.
struct T5Encoded {
  at::Tensor hidden;               // [batch, seq, d_model]
  at::Tensor attention_mask = {};  // [batch, seq], or undefined: no padding
};

// Keys and values of rows = batch * rows_per_text texts that are being written. T5ForConditionalGeneration::start makes it.
class T5Cache {
 public:
  int64_t length() const { return layers_.empty() ? length_ : layers_.front().tokens.length(); }  // tokens of each row
  int64_t capacity() const { return capacity_; }
  int64_t rows() const { return rows_; }

  // Row i goes on where row `rows[i]` stands; int64 [rows]. Rows must stay within their text's.
  void reorder(const at::Tensor& rows);

  // Makes room for `capacity` tokens, at least as many as there are.
  void reserve(int64_t capacity);

 private:
  friend class PagedT5;
  friend class T5StackImpl;
  friend class T5TeamStep;
  std::vector<T5LayerCache> layers_;
  T5KeyMask encoder_keys_;
  int64_t capacity_ = 0, rows_ = 0, length_ = 0;
};

struct T5StackInput {
  at::Tensor hidden;               // [rows, seq, d_model], embedded tokens
  at::Tensor attention_mask = {};  // of them, or undefined
  T5Numerics numerics = {};
  const T5Encoded* encoded = nullptr;  // decoders without a cache
  T5Cache* cache = nullptr;            // decoders: the tokens follow those in the cache
  // Gets the stream before each block and, last, the output: [rows, seq, d_model] each.
  std::vector<at::Tensor>* hidden_states = nullptr;
};

// Children: block.N, final_layer_norm.
class T5StackImpl : public torch::nn::Cloneable<T5StackImpl> {
 public:
  T5StackImpl(const T5Config& config, T5Role role);
  void reset() override;

  // [rows, seq, d_model], normalised.
  at::Tensor forward(const T5StackInput& input);

  // Decoders: the keys and values of what the encoder has said, and room for `capacity` tokens.
  struct CacheRoom {
    int64_t rows_per_text = 1, capacity = 1;
    T5Numerics numerics = {};
  };
  T5Cache make_cache(const T5Encoded& encoded, const CacheRoom& room);

  std::vector<T5Product> products();  // of all blocks, in the order in which they compute

  T5Config config;
  torch::nn::ModuleList block{nullptr};
  T5Weight final_layer_norm{nullptr};

 private:
  friend class PagedT5;
  friend class T5TeamStep;
  T5BlockImpl& block_at(size_t i) { return block->at<T5BlockImpl>(i); }
  at::Tensor bias(T5AttentionImpl& attention, int64_t queries, int64_t keys) const;
  at::Tensor cached_bias(T5AttentionImpl& attention, int64_t queries, T5LayerCache& cache) const;
  T5KeyMask encoder_keys(const T5Encoded& encoded, at::ScalarType dtype, const T5Numerics& numerics) const;

  T5Role role_;
};
TORCH_MODULE(T5Stack);

}  // namespace plimsoll::models
