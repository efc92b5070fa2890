// Examples as the batches that a T5 reads.
#pragma once

#include <functional>
#include <vector>

#include "plimsoll/app/t5/t5_inputs.h"
#include "plimsoll/models/t5/model.h"

namespace plimsoll::app {

struct T5ExampleOptions {
  int64_t batch = 8;            // examples at a time
  int64_t max_new_tokens = 32;  // of what the model writes, greedily, for the decoder to read where nothing is given
  std::function<void()> check = [] {};  // called before each batch; it may throw
};

// With input_ids and attention_mask, and, of a model with a decoder, decoder_input_ids and decoder_attention_mask. All
// examples of a batch have decoder_input or none, in the order of the examples.
std::vector<models::T5Input> t5_inputs_of(const std::vector<T5Example>& examples,
                                          models::T5ForConditionalGenerationImpl& model,
                                          const T5ExampleOptions& options);

// A row that the model wrote, without its start and what follows its end.
std::vector<int64_t> written_ids(const at::Tensor& row, const models::T5Config& config);

// The forward pass that the model has: of an encoder alone there are no logits.
models::T5Output t5_output(models::T5ForConditionalGenerationImpl& model, const models::T5Input& input);

}  // namespace plimsoll::app
