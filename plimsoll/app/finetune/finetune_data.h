// The examples of a fine-tuning run, read and split.
#pragma once

#include <memory>

#include "plimsoll/app/finetune/finetune_options.h"
#include "plimsoll/app/finetune/packed_examples.h"
#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::app {

// The data and the numbers that a user wants to know of it before the run.
struct FinetuneData {
  std::unique_ptr<PackedExamples> examples;
  int64_t training = 0, held_out = 0;        // examples
  int64_t cut = 0, skipped = 0, joined = 0;  // Examples
  int64_t tokens = 0, counted = 0;           // of the training examples
  int64_t context = 0;
};

// Throws io::Error for data that are no examples.
FinetuneData read_finetune_data(const FinetuneOptions& options, const tokenize::Tokenizer& tokenizer);

// The tokenizer in the model's directory.
std::unique_ptr<const tokenize::Tokenizer> tokenizer_of(const FinetuneOptions& options);

}  // namespace plimsoll::app
