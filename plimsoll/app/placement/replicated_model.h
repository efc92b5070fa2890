// Models that every rank has whole: alone, or with averaged gradients (ddp), shared optimizer states (zero1), and shared
// gradients (zero2).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "plimsoll/app/placement/placed_model.h"
#include "plimsoll/optim/adamw.h"
#include "plimsoll/shard/data_parallel/data_parallel.h"

namespace plimsoll::app {

class ReplicatedModel : public PlacedModel {
 public:
  // averaging: none of one rank alone.
  ReplicatedModel(std::shared_ptr<models::LanguageModel> model, std::shared_ptr<const shard::Communicator> ranks,
                  std::unique_ptr<optim::NamedOptimizer> optimizer,
                  std::shared_ptr<shard::DistributedDataParallel> averaging);

  at::Tensor loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch) override;
  std::vector<at::Tensor> parameter_memory() const override { return model_->module().parameters(); }
  void backward(const at::Tensor& loss, bool is_last) override;
  optim::NamedOptimizer& optimizer() override { return *optimizer_; }
  std::shared_ptr<const shard::Communicator> gradient_ranks() const override { return nullptr; }
  io::PieceMap sections() const override;
  void load(const io::CheckpointReader& checkpoint) override;

 protected:
  // Pieces of the optimizer's state that this rank saves.
  virtual std::vector<io::TensorPiece> state_pieces() const;

  std::shared_ptr<models::LanguageModel> model_;
  std::shared_ptr<const shard::Communicator> ranks_;
  std::unique_ptr<optim::NamedOptimizer> optimizer_;

 private:
  std::vector<io::TensorPiece> share_of(const io::TensorMap& tensors) const;

  std::shared_ptr<shard::DistributedDataParallel> averaging_;
};

// The last backward pass of a step updates each parameter when its gradient is complete, and frees the gradient.
class ReleasedModel final : public ReplicatedModel {
 public:
  ReleasedModel(std::shared_ptr<models::LanguageModel> model, std::shared_ptr<const shard::Communicator> ranks,
                std::unique_ptr<optim::AdamW> optimizer)
      : ReplicatedModel(std::move(model), std::move(ranks), std::move(optimizer), nullptr) {}
  void backward(const at::Tensor& loss, bool is_last) override;
};

// zero1: each rank has the states of its share of the parameters.
class SharedStatesModel : public ReplicatedModel {
 public:
  using ReplicatedModel::ReplicatedModel;

 protected:
  std::vector<io::TensorPiece> state_pieces() const override;
};

// zero2: and their gradients.
class SharedGradientsModel final : public SharedStatesModel {
 public:
  using SharedStatesModel::SharedStatesModel;
  std::shared_ptr<const shard::Communicator> gradient_ranks() const override { return ranks_; }
};

}  // namespace plimsoll::app
