// A step of generation as data: which norms, products and attentions one token of each row passes, and where its keys
// and values go. A team of threads runs it with one fork: each thread computes its columns of a product and its heads of
// an attention, and what is small (norms, activations) by itself, so that little but the weights takes time.
// Models describe themselves; the step knows none of them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/kernels/attention/attention.h"
#include "plimsoll/models/team/norm.h"
#include "plimsoll/models/team/product.h"
#include "plimsoll/nn/key_value_cache.h"
#include "plimsoll/ops/rotary/rotary.h"

namespace plimsoll::models {

// Beyond so many rows threads had better divide norms, too.
inline constexpr int64_t kMostStepRows = 64;

// Places of the tokens' keys or values in a cache: elements of each row, then group; a scale beside each where they are
// codes.
struct StepPlaces {
  kernels::AttentionOutput elements = {};
  format::Format format = format::Format::kFp32;
  float* scale = nullptr;
  int64_t scale_row_stride = 0, scale_group_stride = 0;
  // [rows]: how many tokens lie between the places above and those of each row; nullptr: none.
  const int64_t* tokens = nullptr;
  int64_t scale_token_stride = 0;
};

// Tokens of each text of a batch whose texts are not all as long, int64 [rows]; undefined for another.
struct StepLengths {
  at::Tensor before = {}, after = {};  // the step
};

// Texts in pages, one or more tokens of each: their rows follow one another in the step.
struct StepTexts {
  std::vector<int64_t> first_row = {};       // of each text, and one past the last row
  std::vector<int64_t> lengths = {};         // with the step's tokens
  std::vector<const int32_t*> numbers = {};  // kernels::AttentionPages

  int64_t count() const { return static_cast<int64_t>(lengths.size()); }
  int64_t rows(int64_t text) const {
    return first_row[static_cast<size_t>(text) + 1] - first_row[static_cast<size_t>(text)];
  }
};

struct StepAttention {
  // [heads + 2 groups, channels] columns: all queries, all keys, all values. Over keys that were there before the step:
  // the queries alone.
  StepProduct in = {};
  StepNorm query_norm = {}, key_norm = {};  // over the channels of each head, before it turns
  ops::RotaryTurns rotary = {};             // fp32 [1 or rows, rotated]; undefined: nothing turns
  // Everything but q and output. `queries` rows in a row of the step read one text: shape.batch * shape.queries rows.
  kernels::AttentionForward call = {};
  StepPlaces key = {}, value = {};
  // Texts in pages, or nullptr: the keys, values and places above are then those of all pages, and the batch and its
  // keys have no meaning. They must outlive the step. A bias is then a vector of distances between a key and a query
  // (strides of -1 and 1), and points at that of distance 0, with room for those of all texts on both sides.
  const StepTexts* texts = nullptr;
  StepProduct out = {};

  // Attention over a cache of [batch, groups, channels] a token, which grows by the step's token: sets the keys, the
  // values, their number, and the places of the new ones. lengths: of unlike texts, with the step's token; it must
  // outlive the step.
  void extend(nn::KeyValueCache& cache, const StepLengths& lengths = {});
  // Attention over the pages that `cache` is in, of texts that have grown.
  void extend(nn::KeyValueCache& cache, const StepTexts& step_texts);
};

struct StepFeedForward {
  StepProduct up = {};
  kernels::ActivationSpec activation = kernels::Activation::kGelu;
  StepProduct down = {};
};

// A part of a block: it reads the residual stream through a norm, and what it computes is added to the stream.
struct StepLayer {
  StepNorm norm = {};
  std::variant<StepAttention, StepFeedForward> part = {};
  StepNorm branch_norm = {};  // of what is added
  // Parallel residual: it reads the stream that the part before has read, and both are added together.
  bool joins_before = false;
};

// Everything between the products has the dtype of the embedding's output, `format`.
struct TeamStep {
  at::Tensor tokens = {};  // int64 [rows], within the vocabulary
  format::Format format = format::Format::kFp32;
  at::Tensor token_weight = {};     // [vocabulary, dim]
  at::Tensor position_weight = {};  // [1 or rows, dim], added; or undefined
  double embedding_factor = 1;      // one rounding
  std::vector<StepLayer> layers = {};
  StepNorm norm = {};      // of the stream, for the head
  double head_factor = 1;  // of what the head reads, one rounding
  StepProduct head = {};
  std::optional<std::vector<int64_t>> head_rows = {};  // rising: the rows that the head reads; none: all
  StepLengths lengths = {};
  StepTexts texts = {};
};

// Whether nothing in force asks for the layers themselves: no watch, no audit, no scope of another precision.
bool may_step();

// Whether all weights are there, for the instruction set in force where they are packed.
bool fits(const TeamStep& step);

// An error unless all tokens are in the vocabulary: before a cache grows.
void check_tokens(std::span<const int64_t> tokens, int64_t vocabulary);

// Logits [rows that the head reads, vocabulary] in `format`, with the bits of the same layers one by one.
at::Tensor run(const TeamStep& step);

}  // namespace plimsoll::models
