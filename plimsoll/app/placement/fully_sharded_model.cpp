#include "plimsoll/app/placement/fully_sharded_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/optim/groups.h"
#include "plimsoll/shard/engine/mapped_tensor.h"
#include "plimsoll/shard/optimizer/sharded_adamw.h"

namespace plimsoll::app {
namespace {

using Layers = std::unordered_map<std::string, std::shared_ptr<ops::LinearState>>;

// By the names of their weights.
void add_layers(const torch::nn::Module& module, const std::string& path, Layers& layers) {
  if (const auto* layer = dynamic_cast<const nn::ScaledLayer*>(&module)) {
    for (const nn::ScaledLayer::Product& product : layer->products()) {
      if (product.takes_codes())
        layers.emplace(path + (product.prefix.empty() ? "" : product.prefix + "_") + "weight", product.state);
    }
  }
  for (const auto& child : module.named_children()) add_layers(*child.value(), path + child.key() + ".", layers);
}

shard::FullyShardedOptions options_of(const torch::nn::Module& model,
                                      const std::optional<std::filesystem::path>& offload_folder) {
  Layers layers;
  add_layers(model, "", layers);
  return {.flatten_parameters = false,
          .layer_of =
              [layers = std::move(layers)](const std::string& name) {
                const auto found = layers.find(name);
                return found == layers.end() ? nullptr : found->second;
              },
          .offload_folder = offload_folder};
}

std::vector<std::shared_ptr<torch::nn::Module>> modules_of(const std::vector<models::LanguageModel::Unit>& units) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const models::LanguageModel::Unit& unit : units) modules.push_back(unit.module);
  return modules;
}

// Parts of the parameters that this rank has, as optim::decay_groups() would group the whole ones.
std::vector<optim::NamedGroup> decay_groups(const shard::FullyShardedDataParallel& sharded,
                                            const std::map<std::string, size_t>& dimensions,
                                            const torch::optim::AdamWOptions& options) {
  optim::NamedGroup decayed{{}, options}, kept{{}, options};
  kept.options.weight_decay(0);
  for (const auto& [name, part] : sharded.parameters()) {
    if (!part.requires_grad()) continue;
    (dimensions.at(name) >= 2 ? decayed : kept).parameters.emplace_back(name, part);
  }
  return {decayed, kept};
}

optim::StateHome state_home(const std::optional<std::filesystem::path>& offload_folder) {
  if (!offload_folder) return {};
  return {
      .zeros = [folder = *offload_folder](at::IntArrayRef sizes,
                                          at::ScalarType dtype) { return shard::mapped_zeros(sizes, dtype, folder); },
      .rest = shard::release_pages};
}

// Numbers of the whole parameters under optim::decay_groups().
std::map<std::string, uint64_t> numbers_of(const torch::nn::Module& model,
                                           const std::map<std::string, size_t>& dimensions) {
  std::map<std::string, uint64_t> numbers;
  for (const bool is_decayed : {true, false}) {
    for (const auto& item : model.named_parameters()) {
      if (!item.value().requires_grad()) continue;
      if ((dimensions.at(item.key()) >= 2) == is_decayed) numbers.emplace(item.key(), numbers.size());
    }
  }
  return numbers;
}

// A part has the bits of the whole parameter in an optimizer of one rank.
std::unique_ptr<shard::ShardedAdamW> make_optimizer(const torch::nn::Module& model,
                                                    const shard::FullyShardedDataParallel& sharded,
                                                    const std::shared_ptr<const shard::Communicator>& ranks,
                                                    const Placement& placement) {
  std::map<std::string, size_t> dimensions;
  std::map<std::string, int64_t> begins;
  for (const io::TensorPiece& piece : sharded.pieces()) {
    dimensions.emplace(piece.name, piece.shape.size());
    begins.emplace(piece.name, piece.begin);
  }
  const std::vector<optim::NamedGroup> groups = decay_groups(sharded, dimensions, placement.adamw);
  const std::map<std::string, uint64_t> numbers = numbers_of(model, dimensions);
  optim::AdamWSettings settings{.optimizer_state = placement.optimizer_state,
                                .masters = placement.masters,
                                .seed = placement.seed,
                                .home = state_home(placement.offload_folder)};
  for (const optim::NamedGroup& group : groups) {
    for (const auto& [name, part] : group.parameters)
      settings.places.push_back({.number = numbers.at(name), .begin = begins.at(name)});
  }
  return std::make_unique<shard::ShardedAdamW>(groups, ranks, settings);
}

// The piece of the parameter NAME that the state "NAME.exp_avg" belongs to; nullptr: none.
const io::TensorPiece* piece_of(const std::string& state, const std::vector<io::TensorPiece>& pieces) {
  const std::string name = state.substr(0, state.rfind('.'));
  const auto found = std::ranges::find(pieces, name, &io::TensorPiece::name);
  return found == pieces.end() ? nullptr : &*found;
}

// The part that a state of the piece is of the whole parameter's state; nullopt where it is no part.
struct StatePart {
  std::vector<int64_t> shape;  // of the whole state
  int64_t begin = 0, end = 0;
};
std::optional<StatePart> part_of(const std::string& name, const io::TensorPiece& piece) {
  if (name.ends_with(".step")) return std::nullopt;
  if (!name.ends_with("_scale")) return StatePart{piece.shape, piece.begin, piece.end};
  const int64_t begin = piece.begin / kernels::kStateGroup;
  return StatePart{
      {optim::scale_count(io::count_of(piece.shape))}, begin, begin + optim::scale_count(piece.end - piece.begin)};
}

}  // namespace

FullyShardedModel::FullyShardedModel(std::shared_ptr<models::LanguageModel> model,
                                     std::shared_ptr<const shard::Communicator> ranks, const Placement& placement)
    : model_(std::move(model)),
      ranks_(std::move(ranks)),
      sharded_(model_->module(), modules_of(model_->units()), ranks_,
               options_of(model_->module(), placement.offload_folder)),
      optimizer_(make_optimizer(model_->module(), sharded_, ranks_, placement)) {
  size_t number = 0;  // 0 is what is in no unit
  for (const models::LanguageModel::Unit& unit : model_->units()) {
    ++number;
    *unit.hooks = {.before = [this, number] { sharded_.before(number); },
                   .after = [this, number](at::TensorList outputs) { sharded_.after(number, outputs); }};
  }
}

FullyShardedModel::~FullyShardedModel() {
  for (const models::LanguageModel::Unit& unit : model_->units()) *unit.hooks = {};
}

at::Tensor FullyShardedModel::loss(const TrainingBatch& batch, std::optional<bool> /*is_first_microbatch*/) {
  return sharded_.forward([&] { return loss_of(*model_, batch, std::nullopt); });
}

void FullyShardedModel::backward(const at::Tensor& loss, bool /*is_last*/) { loss.backward(); }

std::vector<io::TensorPiece> FullyShardedModel::trained_pieces() const {
  std::set<std::string> trained;
  for (const auto& [name, part] : sharded_.parameters()) {
    if (part.requires_grad()) trained.insert(name);
  }
  std::vector<io::TensorPiece> pieces = sharded_.pieces();
  std::erase_if(pieces, [&](const io::TensorPiece& piece) { return !trained.contains(piece.name); });
  return pieces;
}

std::vector<io::TensorPiece> FullyShardedModel::model_pieces() const {
  std::vector<io::TensorPiece> pieces = trained_pieces();
  if (is_first()) {
    for (const auto& buffer : model_->module().named_buffers()) {
      pieces.push_back(io::whole_piece(buffer.key(), buffer.value()));
    }
  }
  return pieces;
}

std::vector<io::TensorPiece> FullyShardedModel::state_pieces() const {
  const std::vector<io::TensorPiece> parameters = sharded_.pieces();
  std::vector<io::TensorPiece> pieces;
  for (const auto& [name, state] : optimizer_->state_dict()) {
    const io::TensorPiece* const parameter = piece_of(name, parameters);
    const std::optional<StatePart> part = parameter == nullptr ? std::nullopt : part_of(name, *parameter);
    if (part) {
      pieces.push_back({.name = name, .shape = part->shape, .begin = part->begin, .end = part->end, .values = state});
    } else if (is_first()) {
      pieces.push_back(io::whole_piece(name, state));
    }
  }
  return pieces;
}

io::PieceMap FullyShardedModel::sections() const { return {{"model", model_pieces()}, {"optimizer", state_pieces()}}; }

void FullyShardedModel::load_parameters(const io::CheckpointReader& checkpoint) {
  const at::NoGradGuard no_grad;
  for (const io::TensorPiece& piece : trained_pieces()) {
    if (piece.end > piece.begin) piece.values.copy_(checkpoint.read("model", piece.name, piece.begin, piece.end));
  }
  for (const auto& buffer : model_->module().named_buffers()) {
    nn::load_buffer(buffer.key(), buffer.value(), checkpoint.read("model", buffer.key()));
  }
}

void FullyShardedModel::load_states(const io::CheckpointReader& checkpoint) {
  const std::vector<io::TensorPiece> parameters = sharded_.pieces();
  io::TensorMap states;
  for (const auto& [name, state] : optimizer_->state_dict()) {
    const io::TensorPiece* const parameter = piece_of(name, parameters);
    const std::optional<StatePart> part = parameter == nullptr ? std::nullopt : part_of(name, *parameter);
    if (part && state.numel() == 0) {
      states.emplace(name, state);
    } else {
      states.emplace(
          name, part ? checkpoint.read("optimizer", name, part->begin, part->end) : checkpoint.read("optimizer", name));
    }
  }
  optimizer_->load_state_dict(states);
}

void FullyShardedModel::load(const io::CheckpointReader& checkpoint) {
  load_parameters(checkpoint);
  load_states(checkpoint);
}

}  // namespace plimsoll::app
