// A model in training and its optimizer, as the ranks of a run hold them. Each way of sharing has a class of its own.
#pragma once

#include <torch/optim/adamw.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "plimsoll/app/train/training_data.h"
#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/models/language_model.h"
#include "plimsoll/optim/named_optimizer.h"
#include "plimsoll/optim/state_kinds.h"
#include "plimsoll/shard/average/compression.h"
#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/shard/plan/step_plan.h"

namespace plimsoll::app {

class PlacedModel {
 public:
  virtual ~PlacedModel() = default;

  // loss_of() this rank's part of a batch.
  virtual at::Tensor loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch) = 0;
  // The memory that whole parameters have while they compute.
  virtual std::vector<at::Tensor> parameter_memory() const = 0;
  // is_last: of the backward passes of a step, after which gradients are those of all ranks.
  virtual void backward(const at::Tensor& loss, bool is_last) = 0;

  // The optimizer. Where there are several ranks, its update() is a collective.
  virtual optim::NamedOptimizer& optimizer() = 0;
  // The ranks, where each has a part of the gradients; none where this rank has them whole.
  virtual std::shared_ptr<const shard::Communicator> gradient_ranks() const = 0;

  // Pieces that this rank saves: its share of "model" and "optimizer", and of all else that a resumed run needs. Shares
  // storage.
  virtual io::PieceMap sections() const = 0;
  // From any number of ranks. The parameters have been checked.
  virtual void load(const io::CheckpointReader& checkpoint) = 0;
};

struct Placement {
  shard::Sharing sharing = shard::Sharing::kNone;
  torch::optim::AdamWOptions adamw;
  uint64_t seed = 1;  // of the optimizer
  optim::StateKind optimizer_state = optim::StateKind::kFp32;
  optim::MasterKind masters = optim::MasterKind::kFp32;        // others: the model's parameters become BF16
  bool releases_gradients = false;                             // kNone alone, without a loss scale
  shard::Compression compression = shard::Compression::kNone;  // of gradients; not fsdp
  std::optional<std::filesystem::path> offload_folder = {};    // fsdp: shard::FullyShardedOptions
};

// A collective of several ranks.
std::unique_ptr<PlacedModel> place_model(const std::shared_ptr<models::LanguageModel>& model,
                                         const std::shared_ptr<const shard::Communicator>& ranks,
                                         const Placement& placement);

}  // namespace plimsoll::app
