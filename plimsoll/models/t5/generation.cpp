#include "plimsoll/models/t5/generation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/t5/beam_search.h"
#include "plimsoll/runtime/philox.h"

namespace plimsoll::models {
void check(const T5GenerationOptions& options, const T5Config& config) {
  check(options.rules, config.vocab_size);
  TORCH_CHECK_VALUE(options.max_new_tokens >= 0, "generate: expected max_new_tokens >= 0, got ",
                    options.max_new_tokens);
  TORCH_CHECK_VALUE(options.beams >= 1 && options.sequences >= 1, "generate: expected beams and sequences >= 1, got ",
                    options.beams, " and ", options.sequences);
  TORCH_CHECK_VALUE(options.beams == 1 || options.sequences <= options.beams,
                    "generate: expected at most as many sequences as beams, ", options.beams, ", got ",
                    options.sequences);
  TORCH_CHECK_VALUE(options.beams == 1 || !options.samples, "generate: expected beams or sampling, got both");
  TORCH_CHECK_VALUE(options.beams > 1 || options.samples || options.sequences == 1,
                    "generate: expected one sequence without beams and sampling, got ", options.sequences);
  nn::check(options.sampling);
}

T5Decoding::T5Decoding(T5ForConditionalGenerationImpl& model, const T5Encoded& encoded,
                       const T5GenerationOptions& options)
    : model_(model),
      options_(options),
      cache_(model.start(encoded, options.sequences, std::max<int64_t>(options.max_new_tokens, 1))),
      tokens_({at::full({cache_.rows()}, model.config.decoder_start_token_id, at::kLong)}),
      ended_(at::zeros({cache_.rows()}, at::kBool)) {}

bool T5Decoding::done() const {
  return static_cast<int64_t>(tokens_.size()) > options_.max_new_tokens || ended_.all().item<bool>();
}

void T5Decoding::end_rows_without_finite_logits(const at::Tensor& logits) {
  const int64_t vocabulary = logits.size(1);
  bool* ended = ended_.mutable_data_ptr<bool>();
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const float* of_row = logits.const_data_ptr<float>() + row * vocabulary;
    if (ended[row] || are_finite({of_row, static_cast<size_t>(vocabulary)})) continue;
    ended[row] = true;
    not_finite_.insert(row / options_.sequences);
  }
}

void T5Decoding::apply_rules(at::Tensor& logits) const {
  if (options_.rules.change_nothing()) return;
  const auto vocabulary = static_cast<size_t>(logits.size(1));
  const at::Tensor written = at::stack(tokens_, 1);
  const int64_t length = written.size(1);
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const WrittenTokens tokens(written.const_data_ptr<int64_t>() + row * length, static_cast<size_t>(length));
    const TextSoFar text{
        .written = tokens, .new_tokens = length - 1, .ends = std::span(&model_.config.eos_token_id, 1)};
    apply(options_.rules, text, {logits.mutable_data_ptr<float>() + row * logits.size(1), vocabulary});
  }
}

at::Tensor T5Decoding::draw(at::Tensor& scores) const {
  const int64_t rows = scores.size(0);
  const auto vocabulary = static_cast<size_t>(scores.size(1));
  const runtime::Philox philox{.seed = static_cast<uint64_t>(options_.seed), .step = tokens_.size()};
  const bool* ended = ended_.const_data_ptr<bool>();
  at::Tensor tokens = at::full({rows}, model_.config.pad_token_id, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    if (ended[row] && (!options_.keeps_scores || !not_finite_.empty())) continue;
    const Scores of_row(scores.mutable_data_ptr<float>() + row * scores.size(1), vocabulary);
    TORCH_CHECK(ended[row] || *std::max_element(of_row.begin(), of_row.end()) > kBanned,
                "generate: expected a token that the rules allow, got none at token ", tokens_.size());
    const double uniform = philox.word(static_cast<uint64_t>(row)) * 0x1p-32;
    if (!ended[row]) tokens.mutable_data_ptr<int64_t>()[row] = nn::sample(of_row, options_.sampling, uniform);
    if (!options_.keeps_scores) continue;
    const std::vector<float> kept = nn::logits_of_draws(of_row, options_.sampling);
    std::copy(kept.begin(), kept.end(), of_row.begin());
  }
  return tokens;
}

at::Tensor T5Decoding::step() {
  const at::NoGradGuard no_grad;
  at::Tensor scores = model_.extend(tokens_.back().unsqueeze(1), cache_).contiguous();
  io::check_mapped_files();
  end_rows_without_finite_logits(scores);
  apply_rules(scores);
  const at::Tensor best = options_.samples ? draw(scores) : scores.argmax(-1);
  const at::Tensor tokens = best.masked_fill(ended_, model_.config.pad_token_id);
  ended_ = ended_.logical_or(tokens.eq(model_.config.eos_token_id));
  tokens_.push_back(tokens);
  if (options_.keeps_scores) scores_.push_back(scores);
  return tokens;
}

T5Generated T5Decoding::generated() const {
  return {.sequences = at::stack(tokens_, 1), .scores = scores_, .not_finite = not_finite_};
}

T5Generated generate(T5ForConditionalGenerationImpl& model, const at::Tensor& input_ids,
                     const at::Tensor& attention_mask, const T5GenerationOptions& options, const T5TokenSink& sink) {
  check(options, model.config);
  const at::NoGradGuard no_grad;
  const T5Encoded encoded{model.encode(input_ids, attention_mask), attention_mask};
  if (options.beams > 1) {
    T5Generated best = beam_search(model, encoded, options);
    io::check_mapped_files();
    return best;
  }
  T5Decoding decoding(model, encoded, options);
  while (!decoding.done()) {
    const at::Tensor tokens = decoding.step();
    if (sink) sink(tokens);
  }
  return decoding.generated();
}

}  // namespace plimsoll::models
