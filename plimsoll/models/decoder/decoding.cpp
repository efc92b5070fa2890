#include "plimsoll/models/decoder/decoding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "plimsoll/runtime/philox.h"

namespace plimsoll::models {

Decoding::Decoding(DecoderImpl& model, const at::Tensor& input_ids, const at::Tensor& attention_mask,
                   const DecodingOptions& options)
    : model_(model), options_(options) {
  check(options.rules, model.config.vocabulary);
  nn::check(options.sampling);
  TORCH_CHECK_VALUE(options.max_new_tokens >= 0, "generate: expected max_new_tokens >= 0, got ",
                    options.max_new_tokens);
  const int64_t vocabulary = model.config.vocabulary;
  TORCH_CHECK_VALUE(options.pad_token_id >= 0 && options.pad_token_id < vocabulary,
                    "generate: expected pad_token_id in [0, ", vocabulary, "), got ", options.pad_token_id);
  TORCH_CHECK(input_ids.dim() == 2 && input_ids.scalar_type() == at::kLong && input_ids.size(1) > 0,
              "generate: expected input_ids int64 [batch, seq], seq > 0, got ", input_ids.scalar_type(), " ",
              input_ids.sizes());
  TORCH_CHECK(!attention_mask.defined() || attention_mask.sizes() == input_ids.sizes(),
              "generate: expected an attention_mask ", input_ids.sizes(), ", got ", attention_mask.sizes());
  group_rows(input_ids, attention_mask.defined() ? attention_mask : at::ones_like(input_ids));
  tokens_.push_back(input_ids);
  ended_ = at::zeros({input_ids.size(0)}, at::kBool);
}

void Decoding::group_rows(const at::Tensor& input_ids, const at::Tensor& attention_mask) {
  std::map<int64_t, std::vector<int64_t>> rows_of_length;
  for (int64_t row = 0; row < input_ids.size(0); ++row) {
    const at::Tensor text = input_ids[row].masked_select(attention_mask[row] != 0);
    const auto* tokens = text.const_data_ptr<int64_t>();
    texts_.emplace_back(tokens, tokens + text.numel());
    rows_of_length[text.numel()].push_back(row);
  }
  for (const auto& [length, rows] : rows_of_length) {
    const int64_t last_read = length + options_.max_new_tokens - 1;  // the last token written is not read
    TORCH_CHECK_VALUE(length > 0, "generate: expected a token in each row, got none in row ", rows.front());
    TORCH_CHECK_VALUE(last_read <= model_.config.context, "generate: expected at most ", model_.config.context,
                      " tokens, as many as the model can see, got ", length, " and max_new_tokens ",
                      options_.max_new_tokens);
    std::vector<at::Tensor> texts;
    for (const int64_t row : rows) texts.push_back(at::tensor(texts_[static_cast<size_t>(row)], at::kLong));
    groups_.push_back({.rows = at::tensor(rows, at::kLong),
                       .unread = at::stack(texts),
                       .cache = model_.make_cache({.capacity = std::max(last_read, length)})});
  }
}

bool Decoding::done() const {
  return static_cast<int64_t>(tokens_.size()) > options_.max_new_tokens || ended_.all().item<bool>();
}

int64_t Decoding::choose(int64_t row, Scores logits) const {
  TORCH_CHECK(are_finite(logits), "generate: expected finite logits, got Inf or NaN for input ", row);
  const auto new_tokens = static_cast<int64_t>(tokens_.size()) - 1;
  apply(options_.rules, {.written = texts_[static_cast<size_t>(row)], .new_tokens = new_tokens}, logits);
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  TORCH_CHECK(*likeliest > kBanned, "generate: expected a token that the rules allow, got none for input ", row);
  if (!options_.samples) return likeliest - logits.begin();
  const runtime::Philox philox{.seed = static_cast<uint64_t>(options_.seed), .step = tokens_.size()};
  return nn::sample(logits, options_.sampling, philox.word(static_cast<uint64_t>(row)) * 0x1p-32);
}

at::Tensor Decoding::step() {
  const at::NoGradGuard no_grad;
  at::Tensor tokens = at::full({ended_.size(0)}, options_.pad_token_id, at::kLong);
  for (Group& group : groups_) {
    if (ended_.index_select(0, group.rows).all().item<bool>()) continue;
    const at::Tensor logits = model_.extend(group.unread, group.cache).select(1, -1).contiguous();
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const int64_t row = group.rows.const_data_ptr<int64_t>()[i];
      if (has_ended(row)) continue;
      const Scores scores(logits.mutable_data_ptr<float>() + i * logits.size(1), static_cast<size_t>(logits.size(1)));
      const int64_t token = choose(row, scores);
      texts_[static_cast<size_t>(row)].push_back(token);
      tokens.mutable_data_ptr<int64_t>()[row] = token;
      const bool ends = std::ranges::find(options_.eos_token_ids, token) != options_.eos_token_ids.end();
      ended_.mutable_data_ptr<bool>()[row] = ends;
    }
    group.unread = tokens.index_select(0, group.rows).unsqueeze(1);
  }
  tokens_.push_back(tokens.unsqueeze(1));
  return tokens;
}

at::Tensor Decoding::sequences() const { return at::cat(tokens_, 1); }

}  // namespace plimsoll::models
