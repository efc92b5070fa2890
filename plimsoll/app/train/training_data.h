// Data that a run trains on, in the order of its steps.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/models/language_model.h"

namespace plimsoll::app {

// Tokens of one forward pass. Without lengths they are rows of a text, tokens and targets int64 [batch, context].
struct TrainingBatch {
  models::PackedTexts texts;
  double weight = 0;  // of its mean loss in the mean of a step or of an evaluation: the rows, or the targets that count
};

at::Tensor loss_of(models::LanguageModel& model, const TrainingBatch& batch, std::optional<bool> is_first_microbatch);

// Part that a rank has of each forward pass.
struct StepShape {
  int64_t batch = 1;   // rows in a forward pass of all ranks
  int64_t passes = 1;  // in a step
  int64_t rank = 0, ranks = 1;
};

struct TrainingStep {
  std::vector<TrainingBatch> passes;  // of this rank
  double weight = 0;                  // of all batches of all ranks
  int64_t tokens = 0;                 // of all ranks
};

class TrainingData {
 public:
  virtual ~TrainingData() = default;

  // SHA-256 of all that the data are made of.
  virtual const std::string& digest() const = 0;
  // The same steps on all ranks, of which each gets its part.
  virtual TrainingStep next(const StepShape& shape) = 0;
  // The held-out batches, the same each time; may be none.
  virtual std::vector<TrainingBatch> held_out(int64_t batch) const = 0;

  // Members of a checkpoint's state: which data these are, and where the next step begins.
  virtual nlohmann::json state() const = 0;
  // Goes on where another run's data stood. Throws Error for those of other data, json::exception for members that are
  // no place.
  virtual void restore(const nlohmann::json& state) = 0;
};

}  // namespace plimsoll::app
