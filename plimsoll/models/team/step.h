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

// Tokens of one text, one or more, in a step whose texts have caches of their own. Its rows stand together.
struct StepText {
  int64_t first_row = 0, rows = 0;
  kernels::AttentionInput k = {}, v = {};
  kernels::AttentionScale k_scale = {}, v_scale = {};
  int64_t keys = 0;
  StepPlaces key = {}, value = {};  // of the first row; a row's stride is a token's
};

// The cache of a text, for one attention.
struct StepCache {
  nn::KeyValueCache& cache;
  int64_t first_row = 0, rows = 0;
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
  std::vector<StepText> texts = {};  // in place of the batch, the keys and the places above
  StepProduct out = {};

  // Attention over a cache of [batch, groups, channels] a token, which grows by the step's token: sets the keys, the
  // values, their number, and the places of the new ones. lengths: of unlike texts, with the step's token; it must
  // outlive the step.
  void extend(nn::KeyValueCache& cache, const StepLengths& lengths = {});
  // The same of texts with caches of their own, which grow by their tokens.
  void extend(std::span<const StepCache> caches);
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
};

// Whether nothing in force asks for the layers themselves: no watch, no scope of another precision.
bool may_step();

// Whether all weights are there, for the instruction set in force where they are packed.
bool fits(const TeamStep& step);

// An error unless all tokens, int64 of any shape, are in the vocabulary: before a cache grows.
void check_tokens(const at::Tensor& tokens, int64_t vocabulary);

// Logits [rows that the head reads, vocabulary] in `format`, with the bits of the same layers one by one.
at::Tensor run(const TeamStep& step);

}  // namespace plimsoll::models
