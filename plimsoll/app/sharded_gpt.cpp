#include "plimsoll/app/sharded_gpt.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/shard/engine/mapped_tensor.h"

namespace plimsoll::app {
namespace {

using Layers = std::unordered_map<std::string, std::shared_ptr<ops::LinearState>>;

// By the names of their weights.
void add_layers(const torch::nn::Module& module, const std::string& path, Layers& layers) {
  if (const auto* layer = dynamic_cast<const nn::ScaledLayer*>(&module)) {
    for (const nn::ScaledLayer::Product& product : layer->products()) {
      if (product.has_codes)
        layers.emplace(path + (product.prefix.empty() ? "" : product.prefix + "_") + "weight", product.state);
    }
  }
  for (const auto& child : module.named_children()) add_layers(*child.value(), path + child.key() + ".", layers);
}

shard::FullyShardedOptions options_of(const models::Gpt& model,
                                      const std::optional<std::filesystem::path>& offload_folder) {
  Layers layers;
  add_layers(*model, "", layers);
  return {.flatten_parameters = false,
          .layer_of =
              [layers = std::move(layers)](const std::string& name) {
                const auto found = layers.find(name);
                return found == layers.end() ? nullptr : found->second;
              },
          .offload_folder = offload_folder};
}

// The piece of the parameter NAME that the state "NAME.exp_avg" belongs to; nullptr: none.
const io::TensorPiece* piece_of(const std::string& state, const std::vector<io::TensorPiece>& pieces) {
  const std::string name = state.substr(0, state.rfind('.'));
  const auto found = std::ranges::find(pieces, name, &io::TensorPiece::name);
  return found == pieces.end() ? nullptr : &*found;
}

bool has_shape_of(const at::Tensor& state, const std::string& name, const io::TensorPiece& piece) {
  return !name.ends_with(".step") && state.numel() == piece.end - piece.begin;
}

}  // namespace

ShardedGpt::ShardedGpt(models::Gpt model, std::shared_ptr<const shard::Communicator> ranks,
                       std::optional<std::filesystem::path> offload_folder)
    : model_(std::move(model)),
      ranks_(std::move(ranks)),
      offload_folder_(std::move(offload_folder)),
      sharded_(*model_, model_->blocks->children(), ranks_, options_of(model_, offload_folder_)) {
  for (size_t block = 0; block < model_->blocks->size(); ++block) {
    model_->blocks->at<nn::TransformerLayerImpl>(block).hooks = {
        .before = [this, block] { sharded_.before(block + 1); },
        .after = [this, block](at::TensorList outputs) { sharded_.after(block + 1, outputs); }};
  }
}

ShardedGpt::~ShardedGpt() {
  for (size_t block = 0; block < model_->blocks->size(); ++block) {
    model_->blocks->at<nn::TransformerLayerImpl>(block).hooks = {};
  }
}

std::vector<optim::NamedGroup> ShardedGpt::decay_groups(const torch::optim::AdamWOptions& options) const {
  std::map<std::string, size_t> dimensions;
  for (const io::TensorPiece& piece : sharded_.pieces()) dimensions.emplace(piece.name, piece.shape.size());
  optim::NamedGroup decayed{{}, options}, kept{{}, options};
  kept.options.weight_decay(0);
  for (const auto& [name, part] : sharded_.parameters()) {
    (dimensions.at(name) >= 2 ? decayed : kept).parameters.emplace_back(name, part);
  }
  return {decayed, kept};
}

optim::StateHome ShardedGpt::state_home() const {
  if (!offload_folder_) return {};
  return {
      .zeros = [folder = *offload_folder_](at::IntArrayRef sizes,
                                           at::ScalarType dtype) { return shard::mapped_zeros(sizes, dtype, folder); },
      .rest = shard::release_pages};
}

at::Tensor ShardedGpt::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return sharded_.forward([&] { return model_->loss(tokens, targets); });
}

std::vector<io::TensorPiece> ShardedGpt::model_pieces() const {
  std::vector<io::TensorPiece> pieces = sharded_.pieces();
  if (is_first()) {
    for (const auto& buffer : model_->named_buffers()) pieces.push_back(io::whole_piece(buffer.key(), buffer.value()));
  }
  return pieces;
}

std::vector<io::TensorPiece> ShardedGpt::state_pieces(const std::map<std::string, at::Tensor>& states) const {
  const std::vector<io::TensorPiece> parameters = sharded_.pieces();
  std::vector<io::TensorPiece> pieces;
  for (const auto& [name, state] : states) {
    const io::TensorPiece* const parameter = piece_of(name, parameters);
    if (parameter != nullptr && has_shape_of(state, name, *parameter)) {
      pieces.push_back(
          {.name = name, .shape = parameter->shape, .begin = parameter->begin, .end = parameter->end, .values = state});
    } else if (is_first()) {
      pieces.push_back(io::whole_piece(name, state));
    }
  }
  return pieces;
}

void ShardedGpt::load_model(const io::CheckpointReader& checkpoint) {
  const at::NoGradGuard no_grad;
  for (const io::TensorPiece& piece : sharded_.pieces()) {
    if (piece.end > piece.begin) piece.values.copy_(checkpoint.read("model", piece.name, piece.begin, piece.end));
  }
  for (const auto& buffer : model_->named_buffers()) {
    nn::load_buffer(buffer.key(), buffer.value(), checkpoint.read("model", buffer.key()));
  }
}

std::map<std::string, at::Tensor> ShardedGpt::load_states(const io::CheckpointReader& checkpoint,
                                                          const std::map<std::string, at::Tensor>& like) const {
  const std::vector<io::TensorPiece> parameters = sharded_.pieces();
  std::map<std::string, at::Tensor> states;
  for (const auto& [name, state] : like) {
    const io::TensorPiece* const parameter = piece_of(name, parameters);
    const bool is_part = parameter != nullptr && has_shape_of(state, name, *parameter);
    if (is_part && state.numel() == 0) {
      states.emplace(name, state);
    } else {
      states.emplace(name, is_part ? checkpoint.read("optimizer", name, parameter->begin, parameter->end)
                                   : checkpoint.read("optimizer", name));
    }
  }
  return states;
}

}  // namespace plimsoll::app
