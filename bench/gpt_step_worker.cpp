// One contestant of gpt_step.py and decoder_train.py: Plimsoll's training step under one recipe, or under autoscale, run
// on request; of a GPT, or of the model in a directory, whose weights are held in fp32.
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
#include "plimsoll/app/loss_scale.h"
#include "plimsoll/app/process_memory.h"
#include "plimsoll/autoscale/module.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/load.h"
#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/optim/adamw.h"
#include "plimsoll/recipe/recipe.h"

namespace {

using namespace plimsoll;

struct Options {
  models::GptConfig shape;
  std::string model;  // a directory; empty: a GPT of `shape`
  int64_t batch = 16;
  int threads = 2;
  std::string recipe = "fp8";
};

std::shared_ptr<models::LanguageModel> make_model(const Options& options) {
  if (options.model.empty()) return std::make_shared<models::GptImpl>(options.shape);
  return models::load(options.model, {.dtype = models::WeightDtype::kFp32}).model;
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
        optimizer_(optim::decay_groups(model_->module().named_parameters(),
                                       torch::optim::AdamWOptions(3e-4).weight_decay(0.01))),
        scaler_(app::LossScale().options(recipe_)) {}

  double run() override {
    const at::Tensor value = loss();
    scaler_.scale(value).backward();
    scaler_.step(optimizer_, {.max_norm = 1.0});
    scaler_.update();
    optimizer_.zero_grad();
    return value.item<double>();
  }

  std::optional<int64_t> saved_bytes() override {
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
    return std::make_unique<AutoscaleStep>(
        options, autoscale::Settings{.product_values = at::kFloat8_e4m3fn, .product_gradients = at::kFloat8_e5m2});
  return std::make_unique<RecipeStep>(options);
}

void serve(Step& step) {
  const std::optional<int64_t> saved = step.saved_bytes();
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
