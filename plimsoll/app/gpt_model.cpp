#include "plimsoll/app/gpt_model.h"

#include <fmt/ranges.h>

#include "plimsoll/app/error.h"
#include "plimsoll/io/byte_tokenizer.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/gpt/shapes.h"

namespace plimsoll::app {
namespace {

io::Checkpoint load_step(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return io::load_checkpoint(path);
  auto latest = io::load_latest_checkpoint(path);
  if (!latest) fail("{}: expected a checkpoint or a run with one, got none", path.native());
  return std::move(latest->checkpoint);
}

models::GptConfig config_of(const ModelShape& shape) {
  return {.vocabulary = io::kByteVocabulary,
          .layers = shape.layers,
          .dim = shape.dim,
          .heads = shape.heads,
          .context = shape.context,
          .tie_embeddings = !shape.own_head,
          .normalization = shape.rms_norm ? nn::Normalization::kRmsNorm : nn::Normalization::kLayerNorm,
          .norm_epsilon = shape.norm_epsilon};
}

}  // namespace

models::Gpt make_gpt(const ModelShape& shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return models::Gpt(config_of(shape));
}

io::TensorMap tensors_of(const models::Gpt& model) {
  io::TensorMap tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace(item.key(), item.value().detach());
  for (const auto& item : model->named_buffers()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

StoredTensors stored(const io::TensorMap& tensors) {
  StoredTensors result;
  for (const auto& [name, tensor] : tensors) {
    result[name] = {std::string(io::safetensors_dtype(tensor.scalar_type())), tensor.sizes().vec()};
  }
  return result;
}

void check_parameters(const ModelShape& shape, const StoredTensors& tensors) {
  const auto check = [&](const std::string& name, const std::vector<int64_t>& expected) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail("checkpoint: expected a tensor '{}', got none", name);
    const auto& [dtype, got] = found->second;
    if (got != expected) fail("checkpoint: expected '{}' of shape {}, got {}", name, expected, got);
    if (dtype != "F32" && dtype != "BF16" && dtype != "F16") {
      fail("checkpoint: expected '{}' in F32, BF16 or F16, got {}", name, dtype);
    }
  };
  // These two hold the sizes of all others, and the number of tensors that of the layers, so that the rest is no more
  // than the file.
  check("token_embedding.weight", {io::kByteVocabulary, shape.dim});
  check("position_embedding.weight", {shape.context, shape.dim});
  if (shape.layers > static_cast<int64_t>(tensors.size())) {
    fail("checkpoint: expected the tensors of {} layers, as state.json says, got {} tensors", shape.layers,
         tensors.size());
  }
  for (const auto& [name, expected] : models::gpt_parameter_shapes(config_of(shape))) check(name, expected);
}

void load_tensors(models::Gpt& model, const io::TensorMap& tensors) {
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
  for (const auto& item : parameters) at::Tensor(item.value()).copy_(find(item.key()));
  for (const auto& item : buffers) {
    try {
      nn::load_buffer(item.key(), item.value(), find(item.key()));
    } catch (const c10::ValueError& error) {
      fail("checkpoint: {}", error.what_without_backtrace());
    }
  }
}

TrainedGpt load_trained_gpt(const std::filesystem::path& path) {
  const io::Checkpoint checkpoint = load_step(path);
  try {
    TrainedGpt trained{.step = checkpoint.step,
                       .shape = checkpoint.state.at("shape").get<ModelShape>(),
                       .recipe = checkpoint.state.at("recipe").get<std::string>()};
    check_shape(trained.shape);
    const io::TensorMap& tensors = checkpoint.sections.at("model");
    check_parameters(trained.shape, stored(tensors));
    trained.model = make_gpt(trained.shape, 0);
    load_tensors(trained.model, tensors);
    io::check_mapped_files();
    trained.model->eval();
    return trained;
  } catch (const nlohmann::json::exception&) {
    fail("{}: expected the state of a training run, got another checkpoint", path.native());
  } catch (const std::out_of_range&) {
    fail("{}: expected a checkpoint with a model", path.native());
  }
}

}  // namespace plimsoll::app
