#include "plimsoll/app/gpt_model.h"

#include <fmt/ranges.h>

#include "plimsoll/app/error.h"
#include "plimsoll/io/byte_tokenizer.h"
#include "plimsoll/io/checkpoint.h"

namespace plimsoll::app {
namespace {

io::Checkpoint load_step(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return io::load_checkpoint(path);
  auto latest = io::load_latest_checkpoint(path);
  if (!latest) fail("{}: expected a checkpoint or a run with one, got none", path.native());
  return std::move(latest->checkpoint);
}

}  // namespace

nn::Gpt make_gpt(const ModelShape& shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return nn::Gpt(
      nn::GptConfig{.vocabulary = io::kByteVocabulary,
                    .layers = shape.layers,
                    .dim = shape.dim,
                    .heads = shape.heads,
                    .context = shape.context,
                    .tie_embeddings = !shape.own_head,
                    .normalization = shape.rms_norm ? nn::Normalization::kRmsNorm : nn::Normalization::kLayerNorm,
                    .norm_epsilon = shape.norm_epsilon});
}

io::TensorMap tensors_of(const nn::Gpt& model) {
  io::TensorMap tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace(item.key(), item.value().detach());
  for (const auto& item : model->named_buffers()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

void load_tensors(nn::Gpt& model, const io::TensorMap& tensors) {
  const at::NoGradGuard no_grad;
  const auto find = [&](const std::string& name) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail("checkpoint: expected a tensor '{}', got none", name);
    return found->second;
  };
  const auto parameters = model->named_parameters();
  const auto buffers = model->named_buffers();
  for (const auto& [name, tensor] : tensors) {
    if (!parameters.contains(name) && !buffers.contains(name)) fail("checkpoint: unknown tensor '{}'", name);
  }
  for (const auto& item : parameters) {
    const at::Tensor tensor = find(item.key());
    if (tensor.sizes() != item.value().sizes()) {
      fail("checkpoint: expected '{}' of shape {}, got {}", item.key(), item.value().sizes(), tensor.sizes());
    }
    at::Tensor(item.value()).copy_(tensor);
  }
  // A history may have any length, so a buffer takes the shape of what was saved.
  for (const auto& item : buffers) at::Tensor(item.value()).set_data(find(item.key()).clone());
}

TrainedGpt load_trained_gpt(const std::filesystem::path& path) {
  const io::Checkpoint checkpoint = load_step(path);
  try {
    TrainedGpt trained{.step = checkpoint.step,
                       .shape = checkpoint.state.at("shape").get<ModelShape>(),
                       .recipe = checkpoint.state.at("recipe").get<std::string>()};
    check_shape(trained.shape);
    trained.model = make_gpt(trained.shape, 0);
    load_tensors(trained.model, checkpoint.sections.at("model"));
    trained.model->eval();
    return trained;
  } catch (const nlohmann::json::exception&) {
    fail("{}: expected the state of a training run, got another checkpoint", path.native());
  } catch (const std::out_of_range&) {
    fail("{}: expected a checkpoint with a model", path.native());
  }
}

}  // namespace plimsoll::app
