#include "plimsoll/app/placement/replicated_model.h"

#include <utility>

#include "plimsoll/models/tensors.h"
#include "plimsoll/shard/checkpoint/checkpoint.h"

namespace plimsoll::app {
namespace {

// The checkpoint's name for what compression has left out of gradients.
constexpr const char* kLeftOut = "left_out";

}  // namespace

ReplicatedModel::ReplicatedModel(std::shared_ptr<models::LanguageModel> model,
                                 std::shared_ptr<const shard::Communicator> ranks,
                                 std::unique_ptr<optim::NamedOptimizer> optimizer,
                                 std::shared_ptr<shard::DistributedDataParallel> averaging)
    : model_(std::move(model)),
      ranks_(std::move(ranks)),
      optimizer_(std::move(optimizer)),
      averaging_(std::move(averaging)) {}

at::Tensor ReplicatedModel::loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch) {
  return loss_of(*model_, batch, is_first_microbatch);
}

void ReplicatedModel::backward(const at::Tensor& loss, bool is_last) {
  std::optional<shard::DistributedDataParallel::NoSync> no_sync;
  if (averaging_ && !is_last) no_sync.emplace(*averaging_);
  loss.backward();
}

void ReleasedModel::backward(const at::Tensor& loss, bool is_last) {
  if (!is_last) return loss.backward();
  const optim::GradientRelease release = static_cast<optim::AdamW&>(*optimizer_).release_gradients();
  loss.backward();
}

std::vector<io::TensorPiece> ReplicatedModel::share_of(const io::TensorMap& tensors) const {
  return shard::share_of_replicated(tensors, *ranks_, ranks_->rank());
}

std::vector<io::TensorPiece> ReplicatedModel::state_pieces() const { return share_of(optimizer_->state_dict()); }

std::vector<io::TensorPiece> SharedStatesModel::state_pieces() const {
  return io::whole_pieces(optimizer_->state_dict());
}

io::PieceMap ReplicatedModel::sections() const {
  io::PieceMap sections = {{"model", share_of(models::trained_tensors_of(model_->module()))},
                           {"optimizer", state_pieces()}};
  // A run that compresses nothing has no files of it.
  std::vector<io::TensorPiece> left_out;
  if (averaging_) left_out = averaging_->left_out();
  if (!left_out.empty()) sections.emplace(kLeftOut, std::move(left_out));
  return sections;
}

void ReplicatedModel::load(const io::CheckpointReader& checkpoint) {
  models::load_tensors(model_->module(), checkpoint.read_section("model"));
  io::TensorMap states;
  for (const auto& [name, tensor] : optimizer_->state_dict()) states.emplace(name, checkpoint.read("optimizer", name));
  optimizer_->load_state_dict(states);
  if (averaging_) averaging_->restore_left_out(checkpoint, kLeftOut);
}

}  // namespace plimsoll::app
