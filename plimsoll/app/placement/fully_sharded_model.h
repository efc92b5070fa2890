// fsdp: a model of which each rank holds a part: of the parameters, their gradients and the optimizer's states.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "plimsoll/app/placement/placed_model.h"
#include "plimsoll/shard/engine/fully_sharded.h"

namespace plimsoll::app {

class FullyShardedModel final : public PlacedModel {
 public:
  // Units are the model's. Weights of products travel as codes where the recipe has such of theirs.
  FullyShardedModel(std::shared_ptr<models::LanguageModel> model, std::shared_ptr<const shard::Communicator> ranks,
                    const Placement& placement);
  ~FullyShardedModel() override;
  FullyShardedModel(const FullyShardedModel&) = delete;
  FullyShardedModel& operator=(const FullyShardedModel&) = delete;

  // Every forward pass gathers the weights anew: is_first_microbatch counts for nothing.
  at::Tensor loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch) override;
  std::vector<at::Tensor> parameter_memory() const override { return sharded_.memory(); }
  void backward(const at::Tensor& loss, bool is_last) override;
  optim::NamedOptimizer& optimizer() override { return *optimizer_; }
  std::shared_ptr<const shard::Communicator> gradient_ranks() const override { return ranks_; }
  // Parts that this rank has of the parameters and of the states that have their shapes. The first rank saves the
  // model's buffers, and states that are the same on all ranks.
  io::PieceMap sections() const override;
  void load(const io::CheckpointReader& checkpoint) override;

 private:
  bool is_first() const { return ranks_->rank() == 0; }
  std::vector<io::TensorPiece> trained_pieces() const;  // parts of the parameters that are not frozen
  std::vector<io::TensorPiece> model_pieces() const;
  std::vector<io::TensorPiece> state_pieces() const;
  void load_parameters(const io::CheckpointReader& checkpoint);
  void load_states(const io::CheckpointReader& checkpoint);

  std::shared_ptr<models::LanguageModel> model_;
  std::shared_ptr<const shard::Communicator> ranks_;
  shard::FullyShardedDataParallel sharded_;
  std::unique_ptr<optim::NamedOptimizer> optimizer_;
};

}  // namespace plimsoll::app
