// A model in training: everything that a step changes, and nothing else. What it holds is what a checkpoint holds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/app/placement/placed_model.h"
#include "plimsoll/app/train/step_result.h"
#include "plimsoll/app/train/train_options.h"
#include "plimsoll/app/train/training_data.h"
#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/models/language_model.h"
#include "plimsoll/models/tensors.h"
#include "plimsoll/ops/scaling/scaling_step.h"
#include "plimsoll/shard/checkpoint/checkpoint.h"
#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::app {

class Trainer {
 public:
  // model: first_model's. Works on the calling thread only. Of several ranks each has its part of every batch, and
  // all have the same model: they call train_step() as often as each other.
  Trainer(const TrainOptions& options, std::shared_ptr<models::LanguageModel> model, std::unique_ptr<TrainingData> data,
          std::shared_ptr<const shard::Communicator> ranks = shard::Communicator::connect({}));

  int64_t step() const { return step_; }  // steps done
  int64_t parameters() const { return parameters_; }

  StepResult train_step();

  // Mean over the same held-out data each time; nothing where there is none. Changes nothing.
  std::optional<double> validation_loss();

  // The operands of the last step and the incidents of all steps.
  const watch::Session& session() const { return session_; }

  // Bytes that one forward pass keeps for backward, parameters left out; nothing before the first step of this process.
  std::optional<int64_t> saved_activation_bytes() const { return saved_activation_bytes_; }

  // shares_json of the multiply-adds so far under the recipe `auto`; null under others.
  nlohmann::json precision_shares() const;

  // State of the run that this rank saves. Shares storage with the model and the optimizer.
  shard::RankCheckpoint checkpoint() const;
  // From any number of ranks. Throws Error, with a line that says what differs, if it is of another run.
  void restore(const io::CheckpointReader& checkpoint);

 private:
  at::Tensor forward_loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch);
  TrainingStep next_step();
  // The first time, with a count of what it saves.
  at::Tensor counted_loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch);
  // The pass; returns its share of the mean of this rank.
  double micro_step(const TrainingStep& step, size_t pass);
  double mean_over_ranks(double value) const;
  void check_parameters(const io::CheckpointReader& checkpoint) const;
  void zero_grad();
  optim::StepReport update();
  // End of a step under the recipe `auto`: the formats of the next one.
  StepPrecision choose_formats(const optim::StepReport& report);
  bool is_logged() const;  // every operand's numbers, in this step
  void describe_numbers(StepResult& result, const optim::StepReport& report);

  TrainOptions options_;
  std::unique_ptr<TrainingData> data_;
  std::shared_ptr<const shard::Communicator> ranks_;
  std::shared_ptr<const ops::AmaxReduction> amax_reduction_;  // none of one rank
  std::shared_ptr<models::LanguageModel> model_;
  int64_t parameters_;
  models::ParameterShapes trained_;  // without frozen ones
  std::unique_ptr<PlacedModel> placed_;
  std::shared_ptr<ops::PrecisionController> precision_;  // none: the recipe is not `auto`
  amp::GradScaler scaler_;
  watch::Session session_;
  int64_t step_ = 0;
  std::optional<int64_t> saved_activation_bytes_;
};

}  // namespace plimsoll::app
