#include "plimsoll/app/gauge/gauge_rewrite.h"

#include <ATen/ops/equal.h>

#include <array>
#include <cmath>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/safetensors.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "shared.weight";

// encoder.embed_tokens.weight and the decoder's are the embedding again, in older checkpoints.
bool is_embedding(const std::string& name) { return name == kEmbedding || name.ends_with(".embed_tokens.weight"); }

at::Tensor scaled(const at::Tensor& tensor, int exponent) {
  if (exponent == 0) return tensor;
  const at::Tensor exact = tensor.to(at::kFloat) * std::ldexp(1.0, exponent);
  const at::Tensor stored = exact.to(tensor.scalar_type());
  return at::equal(stored.to(at::kFloat), exact) ? stored : exact;
}

nlohmann::json gauged_config(const GaugeRewrite& rewrite, bool has_own_head) {
  nlohmann::json config = rewrite.source.config();
  config["layer_norm_epsilon"] = std::ldexp(rewrite.config.layer_norm_epsilon, 2 * rewrite.exponents.residual);
  // UMT5's factor of the logits is its tie flag (read_config.cpp), which stays.
  if (has_own_head && config.value("model_type", "t5") != "umt5") {
    config["tie_word_embeddings"] = false;
    config["scale_decoder_outputs"] = rewrite.config.scale_decoder_outputs;
  }
  return config;
}

bool holds_weights(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kEndings = {".safetensors", ".index.json", ".bin",
                                                        ".h5",          ".msgpack",    ".pt"};
  const std::string name = file.filename().native();
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

void copy_other_files(const fs::path& from, const fs::path& to) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    const bool is_about_source = name.native().starts_with("plimsoll_");  // certificates and figures
    if (!entry.is_regular_file() || holds_weights(name) || name == "config.json" || is_about_source) continue;
    fs::copy_file(entry.path(), to / name);
  }
}

}  // namespace

void write_gauged(const GaugeRewrite& rewrite, const fs::path& directory) {
  std::map<std::string, int> exponents;
  for (const models::GaugedTensor& tensor : rewrite.freedoms.weights) {
    exponents[tensor.name] = exponent_of(tensor, rewrite.exponents);
  }
  const int embedding = exponents.at(kEmbedding);
  const bool is_tied = rewrite.config.tie_word_embeddings && !rewrite.config.encoder_only;
  io::TensorMap tensors;
  for (const std::string& name : rewrite.source.names()) {
    const auto found = exponents.find(name);
    const int exponent = is_embedding(name) ? embedding : found == exponents.end() ? 0 : found->second;
    const at::Tensor tensor = rewrite.source.tensor(name);
    tensors[name] = scaled(tensor, exponent);
    if (is_tied && embedding != 0 && is_embedding(name)) tensors[kHead] = tensor;
  }
  io::save_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  io::write_file(directory / "config.json", gauged_config(rewrite, is_tied && embedding != 0).dump(2) + "\n");
  copy_other_files(rewrite.source.path(), directory);
}

}  // namespace plimsoll::app
