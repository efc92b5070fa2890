// A model that writes texts whose keys and values lie in pages: what serving needs of one. LanguageModel is such a model,
// and so is PagedT5, whose encoder reads the prompts.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <span>

#include "plimsoll/models/token_cache.h"
#include "plimsoll/models/token_pages.h"
#include "plimsoll/nn/lora_scope.h"

namespace plimsoll::models {

// Tokens of a text, at least one, that follow those in its cache, a cache of one row.
struct TextTokens {
  TokenCache& cache;
  std::span<const int64_t> tokens;
  bool wants_logits = true;               // of the last one
  const nn::LoraSet* adapters = nullptr;  // of this text; nullptr: what is in force for all
  int64_t encoder_tokens = 0;             // PagedModel::decoder_start()
};

inline constexpr int64_t kMostTextRows = 256;             // tokens of a step of several texts
inline constexpr int64_t kAnyContext = int64_t{1} << 32;  // of a model that sees any number of tokens

// Places in a text that an encoder's input takes: whole pages.
constexpr int64_t encoder_places(int64_t tokens) { return pages_of(tokens) * kPageTokens; }

class PagedModel {
 public:
  virtual ~PagedModel() = default;

  virtual int64_t context() const = 0;  // tokens that the model can see, or kAnyContext
  // The token that a decoder's text begins with, of a model whose encoder reads the prompt; none: the text begins with
  // the prompt. With an encoder, a text is the prompt of `encoder_tokens` tokens, anything up to encoder_places(), this
  // token, and what is written. The first step of an empty cache takes it up to this token at least; a cache that begins
  // with the pages of a text with the same prompt needs no encoder.
  virtual std::optional<int64_t> decoder_start() const { return std::nullopt; }
  virtual TokenCache make_cache(const TokenCacheOptions& options = {}) const = 0;
  // Converts the weights and reads a token into an empty cache that is not in pages. Returns the vocabulary.
  virtual int64_t prepare(TokenCache& cache) = 0;
  // Generation of several texts, each with the bits that it has alone: fp32 [texts that want logits, vocabulary]. An
  // empty cache does not convert the weights: something has been read before. Of texts in the same TokenPages, and at
  // most kMostTextRows tokens together, each weight is read once; texts with the same adapters had better follow one
  // another.
  virtual at::Tensor extend_texts(std::span<const TextTokens> texts) = 0;
};

}  // namespace plimsoll::models
