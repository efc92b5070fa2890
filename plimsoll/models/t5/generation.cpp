#include "plimsoll/models/t5/generation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "plimsoll/models/t5/beam_search.h"
#include "plimsoll/runtime/philox.h"

namespace plimsoll::models {
void check(const T5GenerationOptions& options) {
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
  const nn::SamplingOptions& sampling = options.sampling;
  TORCH_CHECK_VALUE(sampling.temperature >= 0 && sampling.top_k >= 0 && sampling.top_p >= 0 && sampling.top_p <= 1,
                    "generate: expected temperature >= 0, top_k >= 0 and top_p in [0, 1], got ", sampling.temperature,
                    ", ", sampling.top_k, " and ", sampling.top_p);
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

at::Tensor T5Decoding::next(const at::Tensor& logits) const {
  if (!options_.samples) return logits.argmax(-1);
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  const runtime::Philox philox{.seed = static_cast<uint64_t>(options_.seed), .step = tokens_.size()};
  at::Tensor tokens = at::empty({rows}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> of_row(logits.const_data_ptr<float>() + row * vocabulary,
                                        static_cast<size_t>(vocabulary));
    const double uniform = philox.word(static_cast<uint64_t>(row)) * 0x1p-32;
    tokens.mutable_data_ptr<int64_t>()[row] = nn::sample(of_row, options_.sampling, uniform);
  }
  return tokens;
}

at::Tensor T5Decoding::step() {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model_.extend(tokens_.back().unsqueeze(1), cache_).contiguous();
  const at::Tensor tokens = next(logits).masked_fill(ended_, model_.config.pad_token_id);
  ended_ = ended_.logical_or(tokens.eq(model_.config.eos_token_id));
  tokens_.push_back(tokens);
  return tokens;
}

at::Tensor T5Decoding::sequences() const { return at::stack(tokens_, 1); }

at::Tensor generate(T5ForConditionalGenerationImpl& model, const at::Tensor& input_ids,
                    const at::Tensor& attention_mask, const T5GenerationOptions& options, const T5TokenSink& sink) {
  check(options);
  const at::NoGradGuard no_grad;
  const T5Encoded encoded{model.encode(input_ids, attention_mask), attention_mask};
  if (options.beams > 1) return beam_search(model, encoded, options);
  T5Decoding decoding(model, encoded, options);
  while (!decoding.done()) {
    const at::Tensor tokens = decoding.step();
    if (sink) sink(tokens);
  }
  return decoding.sequences();
}

}  // namespace plimsoll::models
