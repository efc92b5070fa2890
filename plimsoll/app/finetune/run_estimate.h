// Memory and time that a fine-tuning run takes, before the model is there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "plimsoll/app/finetune/finetune_options.h"
#include "plimsoll/shard/plan/step_plan.h"

namespace plimsoll::app {

// Bytes of one rank at the fullest moment of a step, and of writing samples of replies.
struct MemoryEstimate {
  int64_t parameters = 0;       // of the model, adapters left out
  shard::PlannedMemory shared;  // weights, gradients, states, what travels, activations
  double head = 0;              // logits, copies of the head's weight, and its gradient before it joins the others
  double working = 0;           // results of a block's backward pass
  double process = 0;           // all that is not tensors: held now, and what threads and libraries come to need
  double reply_weights = 0;     // of the model that writes samples of replies; 0: it writes none

  double tensors() const { return shared.total() + head + working; }
  double idle() const;  // kept by the pool of memory between uses, in a step
  double step() const { return process + tensors() + idle(); }
  double replies() const;
  double total() const { return std::max(step(), replies()); }
};

// rows: in a forward pass of one rank, each `context` tokens long. Activations are counted in a layer of the model's
// width, once with few tokens and once with more.
MemoryEstimate estimate_memory(const FinetuneOptions& options, int64_t rows, int64_t ranks);

// Multiplications and additions of the weights' products, forward and backward, for `tokens`. counted: those that the loss asks for,
// which alone reach the head. Adapters and attention are left out.
double product_operations(const FinetuneOptions& options, double tokens, double counted);

// Seconds that as many take at the peak of this machine's cores in the recipe's products, measured now: a bound from below.
double least_seconds(const FinetuneOptions& options, double operations);

}  // namespace plimsoll::app
