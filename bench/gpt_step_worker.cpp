// One contestant of gpt_step.py, decoder_train.py and finetune.py: Plimsoll's training step under one recipe, or under
// autoscale, run on request; of a GPT, or of the model in a directory, with adapters or without.
// Protocol on stdin and stdout, one JSON object a line: {"ready": true, "saved_bytes": N or null}, then for each line
// "step" one step and {"seconds", "loss", "peak_rss_bytes"}; ends with stdin.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/app/process/process_memory.h"
#include "plimsoll/app/train/loss_scale.h"
#include "plimsoll/autoscale/module.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/optim/adamw.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/runtime/thread_places.h"

namespace {

using namespace plimsoll;

struct Options {
  models::GptConfig shape;
  std::string model;  // a directory; empty: a GPT of `shape`
  int64_t batch = 16;
  int threads = 2;
  std::string recipe = "fp8";
  std::string weights = "fp32";  // of a directory's model: fp32, bf16; under adapters fp8
  int64_t lora_rank = 0;         // adapters of all linear layers, which alone train; 0: none
  std::string optimizer_state = "fp32", masters = "fp32";
  bool releases_gradients = false;  // without clipping
  bool checkpoints_activations = false;
};

std::shared_ptr<models::LanguageModel> make_model(const Options& options) {
  if (options.model.empty()) return std::make_shared<models::GptImpl>(options.shape);
  const models::WeightDtype dtype = recipe::value_of(models::kWeightDtypes, "weights", options.weights);
  const auto model = models::load(options.model, {.dtype = dtype, .codes = {.has_gradient = true}}).model;
  if (options.lora_rank > 0) {
    const auto alpha = static_cast<double>(2 * options.lora_rank);
    models::add_lora(*model, {.adapters = {.rank = options.lora_rank, .alpha = alpha}});
  }
  model->checkpoint_activations(options.checkpoints_activations);
  return model;
}

std::vector<optim::NamedGroup> groups_of(const torch::nn::Module& module) {
  optim::NamedParameters trained;
  for (const auto& named : module.named_parameters()) {
    if (named.value().requires_grad()) trained.insert(named.key(), named.value());
  }
  return optim::decay_groups(trained, torch::optim::AdamWOptions(3e-4).weight_decay(0.01));
}

class Step {
 public:
  explicit Step(const Options& options)
      : model_(make_model(options)),
        parameters_(model_->module().parameters()),
        tokens_(at::randint(options.shape.vocabulary, {options.batch, options.shape.context + 1}, at::kLong)) {
    model_->module().train();
  }
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  virtual double run() = 0;

  // Bytes of the tensors that autograd saves for a backward pass; none where their memory cannot be counted.
  virtual std::optional<int64_t> saved_bytes() { return std::nullopt; }

 protected:
  virtual at::Tensor loss() {
    const int64_t context = tokens_.size(1) - 1;
    return model_->loss(tokens_.narrow(1, 0, context), tokens_.narrow(1, 1, context));
  }

  std::shared_ptr<models::LanguageModel> model_;
  std::vector<at::Tensor> parameters_;

 private:
  at::Tensor tokens_;
};

class RecipeStep final : public Step {
 public:
  explicit RecipeStep(const Options& options)
      : Step(options),
        recipe_(recipe::by_name(options.recipe)),
        optimizer_(
            groups_of(model_->module()),
            {.optimizer_state = recipe::value_of(optim::kOptimizerStates, "optimizer state", options.optimizer_state),
             .masters = recipe::value_of(optim::kMasters, "masters", options.masters)}),
        scaler_(app::LossScale().options(recipe_)),
        releases_gradients_(options.releases_gradients) {}

  double run() override {
    const at::Tensor value = loss();
    if (releases_gradients_) {
      {
        const optim::GradientRelease release = optimizer_.release_gradients();
        value.backward();
      }
      optimizer_.update();
      return value.item<double>();
    }
    scaler_.scale(value).backward();
    scaler_.step(optimizer_, {.max_norm = 1.0});
    scaler_.update();
    optimizer_.zero_grad();
    return value.item<double>();
  }

  std::optional<int64_t> saved_bytes() override {
    if (releases_gradients_) return std::nullopt;  // counting would hold all gradients
    ops::SavedBytesCounter counter(parameters_);
    const at::Tensor value = loss();
    const int64_t bytes = counter.bytes();
    value.backward();
    optimizer_.zero_grad();
    return bytes;
  }

 private:
  at::Tensor loss() override {
    amp::Fp8Autocast scope({.recipe = recipe_});
    return Step::loss();
  }

  recipe::Recipe recipe_;
  optim::AdamW optimizer_;
  amp::GradScaler scaler_;
  bool releases_gradients_;
};

// With torch's own fused operator, for which C++ has no class.
class AutoscaleStep final : public Step {
 public:
  AutoscaleStep(const Options& options, const autoscale::Settings& settings)
      : Step(options), scope_(model_->module(), settings) {
    for (const at::Tensor& parameter : parameters_) {
      moments1_.push_back(at::zeros_like(parameter));
      moments2_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}));
    }
  }

  double run() override {
    const at::Tensor value = loss();
    value.backward();
    torch::nn::utils::clip_grad_norm_(parameters_, 1.0);
    update();
    model_->module().zero_grad();
    return value.item<double>();
  }

 private:
  void update() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      gradients.push_back(parameters_[i].grad());
      steps_[i].add_(1);
    }
    at::_fused_adamw_(parameters_, gradients, moments1_, moments2_, {}, steps_, /*lr=*/3e-4, /*beta1=*/0.9,
                      /*beta2=*/0.999, /*weight_decay=*/0.01, /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
  }

  autoscale::Scope scope_;
  std::vector<at::Tensor> moments1_, moments2_, steps_;
};

std::unique_ptr<Step> make_step(const Options& options) {
  if (options.recipe == "autoscale-fp16") return std::make_unique<AutoscaleStep>(options, autoscale::Settings{});
  if (options.recipe == "autoscale-fp8")
    return std::make_unique<AutoscaleStep>(options,
                                           autoscale::Settings{.product_values = autoscale::ProductFormat::kE4m3,
                                                               .product_gradients = autoscale::ProductFormat::kE5m2});
  return std::make_unique<RecipeStep>(options);
}

void serve(Step& step) {
  const std::optional<int64_t> saved = step.saved_bytes();
  if (!saved) step.run();  // in the place of the pass that counts, so that all do as much before the step that is timed
  step.run();
  nlohmann::json ready = {{"ready", true}, {"saved_bytes", nullptr}};
  if (saved) ready["saved_bytes"] = *saved;
  std::cout << ready << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    const double loss = step.run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << nlohmann::json(
                     {{"seconds", seconds.count()}, {"loss", loss}, {"peak_rss_bytes", app::peak_rss_bytes()}})
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  use_caching_allocator();
  runtime::keep_threads_apart();  // both as the commands do
  Options options;
  CLI::App command("Plimsoll's training step, run on request");
  command.add_option("--layers", options.shape.layers);
  command.add_option("--dim", options.shape.dim);
  command.add_option("--heads", options.shape.heads);
  command.add_option("--context", options.shape.context);
  command.add_option("--vocabulary", options.shape.vocabulary);
  command.add_option("--tied", options.shape.tie_embeddings);
  command.add_option("--model", options.model, "a Hugging Face directory instead of a GPT of this shape");
  command.add_option("--batch", options.batch);
  command.add_option("--threads", options.threads);
  command.add_option("--recipe", options.recipe, "or autoscale-fp16, autoscale-fp8");
  command.add_option("--weights", options.weights, "of --model: fp32, bf16, or fp8 with --lora-rank");
  command.add_option("--lora-rank", options.lora_rank, "of adapters of all linear layers of --model");
  command.add_option("--optimizer-state", options.optimizer_state, "fp32, bf16 or 8bit");
  command.add_option("--masters", options.masters, "fp32, split or none");
  command.add_flag("--release-gradients", options.releases_gradients, "in backward, without clipping");
  command.add_flag("--checkpoint-activations", options.checkpoints_activations, "of --model");
  CLI11_PARSE(command, argc, argv);
  try {
    at::set_num_threads(options.threads);
    torch::manual_seed(1);
    serve(*make_step(options));
  } catch (const std::exception& error) {
    std::cerr << "gpt_step_worker: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
