// A step of generation on a team of threads with one fork: of each product and each attention every thread computes its
// columns and heads, and what is small (norms, activations) by itself, so that little but the weights takes time.
#pragma once

#include <optional>
#include <vector>

#include "plimsoll/kernels/attention/attention.h"
#include "plimsoll/models/t5/model.h"
#include "plimsoll/runtime/team.h"

namespace plimsoll::models {

class T5TeamStep {
 public:
  // Logits [rows, vocab_size] in the dtype of the computation of what follows tokens int64 [rows, 1], which follow
  // those in the cache and join it. The bits are those of T5Stack::forward and the head, to which it leaves what is
  // watched, trained, under a scope or fixes, not yet packed, or the first of a cache: nullopt, and nothing has
  // changed.
  static std::optional<at::Tensor> logits(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens,
                                          T5Cache& cache);

 private:
  using Packed = std::shared_ptr<const PackedWeights>;
  struct Attention {
    const T5WeightImpl* norm;
    Packed in, out;  // q, k and v, or q; o
    kernels::AttentionForward call = {};
    kernels::AttentionOutput key = {}, value = {};  // where the new token's go: of self-attention
  };
  struct FeedForward {
    const T5WeightImpl* norm;
    Packed up, down;
  };
  struct Block {
    Attention own, cross;
    FeedForward feed_forward;
  };
  // Scratch memory of one thread.
  struct Own {
    char* hidden;  // the residual stream
    char* sum;     // and with what is added to it
    char* x;
    char* inner;
    float* norm_weight;
  };

  T5TeamStep(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens, T5Cache& cache);
  bool finds_weights();
  at::Tensor run();
  void place_buffers();
  Attention self_attention(size_t layer);
  Attention cross_attention(size_t layer) const;

  void follow(const runtime::Team& team, at::Tensor& logits) const;
  void embed(const Own& own) const;
  void normalise(Own& own, const T5WeightImpl& norm, bool adds) const;
  void scale(void* x) const;
  void attend(const runtime::Team& team, Own& own, const Attention& attention, bool adds) const;
  void attend_heads(const Attention& attention, int64_t begin, int64_t end) const;
  void feed_forward(const runtime::Team& team, Own& own, const FeedForward& layer) const;
  void multiply(const runtime::Team& team, const Packed& weights, const void* x, void* values) const;

  T5ForConditionalGenerationImpl& model_;
  const at::Tensor tokens_;
  T5Cache& cache_;
  const at::ScalarType dtype_;
  const format::Format format_;
  const int64_t rows_, size_;  // bytes of an element
  std::vector<Block> blocks_;
  Packed head_;
  at::Tensor memory_;
  std::vector<Own> own_;
  char *in_ = nullptr, *read_ = nullptr, *up_ = nullptr, *out_ = nullptr;  // what all write, each its part
};

}  // namespace plimsoll::models
