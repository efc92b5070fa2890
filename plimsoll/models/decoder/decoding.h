// Texts that a decoder-only model writes, step by step: the likeliest token, or a draw.
#pragma once

#include <vector>

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/logits_rules.h"
#include "plimsoll/nn/sampler.h"

namespace plimsoll::models {

// Defaults and meaning are those of Hugging Face's GenerationConfig.
struct DecodingOptions {
  int64_t max_new_tokens = 20;
  bool samples = false;
  nn::SamplingOptions sampling = {.temperature = 1.0, .top_k = 50, .top_p = 1.0};
  int64_t seed = 0;  // of the draws
  LogitsRules rules = {};
  std::vector<int64_t> eos_token_ids = {};  // each ends a text
  int64_t pad_token_id = 0;                 // stands behind the end of a text
};

// Rows with equally many tokens share a cache: a text has the tokens that it has alone. The rules do not see padding.
class Decoding {
 public:
  // The model must outlive it. input_ids int64 [batch, seq]; attention_mask as DecoderImpl::forward has it.
  Decoding(DecoderImpl& model, const at::Tensor& input_ids, const at::Tensor& attention_mask,
           const DecodingOptions& options);

  bool done() const;
  // int64 [batch]: the tokens written, pad where a text has ended. An error where logits are Inf or NaN.
  at::Tensor step();
  // int64 [batch, seq + steps]: input_ids and what was written.
  at::Tensor sequences() const;

 private:
  struct Group {
    at::Tensor rows;    // int64: of the batch
    at::Tensor unread;  // int64 [rows, tokens]: what the model has not seen yet
    TokenCache cache;
  };

  void group_rows(const at::Tensor& input_ids, const at::Tensor& attention_mask);
  bool has_ended(int64_t row) const { return ended_.const_data_ptr<bool>()[row]; }
  int64_t choose(int64_t row, Scores logits) const;

  DecoderImpl& model_;
  DecodingOptions options_;
  std::vector<Group> groups_;
  std::vector<std::vector<int64_t>> texts_;  // of each row, without padding
  std::vector<at::Tensor> tokens_;           // int64 [batch, ...]: input_ids, then a token of each step
  at::Tensor ended_;                         // bool [batch]
};

}  // namespace plimsoll::models
