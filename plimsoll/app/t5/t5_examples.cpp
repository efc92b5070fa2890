#include "plimsoll/app/t5/t5_examples.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "plimsoll/models/t5/generation.h"

namespace plimsoll::app {
namespace {

// The rows [begin, end) that are one batch.
size_t batch_end(const std::vector<T5Example>& examples, size_t begin, int64_t batch) {
  const bool given = !examples[begin].decoder_input.empty();
  size_t end = begin;
  while (end < examples.size() && end - begin < static_cast<size_t>(batch) &&
         examples[end].decoder_input.empty() != given) {
    ++end;
  }
  return end;
}

// True up to and with the first end of each row.
at::Tensor through_end(const at::Tensor& ids, int64_t end_token) {
  const at::Tensor ends = ids.eq(end_token).to(at::kLong);
  return (ends.cumsum(1) - ends).eq(0);
}

}  // namespace

std::vector<models::T5Input> t5_inputs_of(const std::vector<T5Example>& examples,
                                          models::T5ForConditionalGenerationImpl& model,
                                          const T5ExampleOptions& options) {
  std::vector<std::vector<int64_t>> inputs, decoder_inputs;
  for (const T5Example& example : examples) {
    inputs.push_back(example.input);
    decoder_inputs.push_back(example.decoder_input);
  }
  const int64_t pad = model.config.pad_token_id;
  std::vector<models::T5Input> result;
  for (size_t begin = 0, end = 0; begin < examples.size(); begin = end) {
    options.check();
    end = batch_end(examples, begin, options.batch);
    const T5Batch batch = t5_batch(inputs, begin, end, pad);
    models::T5Input input{.input_ids = batch.ids, .attention_mask = batch.mask};
    if (!model.config.encoder_only && !decoder_inputs[begin].empty()) {
      const T5Batch decoder = t5_batch(decoder_inputs, begin, end, pad);
      input.decoder_input_ids = decoder.ids;
      input.decoder_attention_mask = decoder.mask;
    } else if (!model.config.encoder_only) {
      input.decoder_input_ids =
          models::generate(model, batch.ids, batch.mask, {.max_new_tokens = options.max_new_tokens}).sequences;
      input.decoder_attention_mask = through_end(input.decoder_input_ids, model.config.eos_token_id);
    }
    result.push_back(std::move(input));
  }
  return result;
}

std::vector<int64_t> written_ids(const at::Tensor& row, const models::T5Config& config) {
  const at::Tensor dense = row.contiguous();
  const int64_t* first = dense.const_data_ptr<int64_t>();
  const int64_t* last = first + dense.numel();
  return {first + 1, std::find(first + 1, last, config.eos_token_id)};
}

models::T5Output t5_output(models::T5ForConditionalGenerationImpl& model, const models::T5Input& input) {
  return model.config.encoder_only ? model.run_encoder(input) : model.forward(input);
}

}  // namespace plimsoll::app
