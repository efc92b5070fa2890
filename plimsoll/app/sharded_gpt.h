// A GPT of which each rank holds a part: of the parameters, their gradients and the optimizer's states.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/optim/groups.h"
#include "plimsoll/optim/state_home.h"
#include "plimsoll/shard/engine/fully_sharded.h"

namespace plimsoll::app {

class ShardedGpt {
 public:
  // Each block is a unit. Weights of products travel as codes where the recipe has such of theirs. offload_folder:
  // shard::FullyShardedOptions.
  ShardedGpt(models::Gpt model, std::shared_ptr<const shard::Communicator> ranks,
             std::optional<std::filesystem::path> offload_folder = {});
  ~ShardedGpt();
  ShardedGpt(const ShardedGpt&) = delete;
  ShardedGpt& operator=(const ShardedGpt&) = delete;

  // This rank's parts of the parameters, as optim::decay_groups() would group the whole ones.
  std::vector<optim::NamedGroup> decay_groups(const torch::optim::AdamWOptions& options) const;

  // Where an optimizer's states wait.
  optim::StateHome state_home() const;

  // models::Gpt's.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  // What holds whole parameters while they are needed.
  std::vector<at::Tensor> memory() const { return sharded_.memory(); }

  // What this rank saves: its parts of the parameters, and of what an optimizer's states have of their shapes. The
  // first rank saves the model's buffers, and states that are the same on all ranks.
  std::vector<io::TensorPiece> model_pieces() const;
  std::vector<io::TensorPiece> state_pieces(const std::map<std::string, at::Tensor>& states) const;

  // From any number of ranks.
  void load_model(const io::CheckpointReader& checkpoint);
  std::map<std::string, at::Tensor> load_states(const io::CheckpointReader& checkpoint,
                                                const std::map<std::string, at::Tensor>& like) const;

 private:
  bool is_first() const { return ranks_->rank() == 0; }

  models::Gpt model_;
  std::shared_ptr<const shard::Communicator> ranks_;
  std::optional<std::filesystem::path> offload_folder_;
  shard::FullyShardedDataParallel sharded_;
};

}  // namespace plimsoll::app
