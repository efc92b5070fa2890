// One contestant of gpt_step.py: Plimsoll's GPT training step under one recipe, run on request.
// Protocol on stdin and stdout, one JSON object a line: {"ready": true, "saved_bytes": N}, then for each line "step"
// one step and {"seconds", "loss", "peak_rss_bytes"}; ends with stdin.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/app/loss_scale.h"
#include "plimsoll/app/process_memory.h"
#include "plimsoll/nn/gpt.h"
#include "plimsoll/ops/caching_allocator.h"
#include "plimsoll/ops/saved_bytes.h"
#include "plimsoll/optim/adamw.h"
#include "plimsoll/recipe/recipe.h"

namespace {

using namespace plimsoll;

struct Options {
  nn::GptConfig shape;
  int64_t batch = 16;
  int threads = 2;
  std::string recipe = "fp8";
};

class Step {
 public:
  explicit Step(const Options& options)
      : recipe_(recipe::by_name(options.recipe)),
        model_(options.shape),
        optimizer_(
            optim::decay_groups(model_->named_parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.01))),
        scaler_(app::parse_loss_scale("recipe", recipe_)),
        tokens_(at::randint(options.shape.vocabulary, {options.batch, options.shape.context + 1}, at::kLong)) {}

  at::Tensor loss() {
    amp::Fp8Autocast scope({.recipe = recipe_});
    const int64_t context = model_->config.context;
    return model_->loss(tokens_.narrow(1, 0, context), tokens_.narrow(1, 1, context));
  }

  double run() {
    const at::Tensor value = loss();
    scaler_.scale(value).backward();
    scaler_.step(optimizer_, {.max_norm = 1.0});
    scaler_.update();
    optimizer_.zero_grad();
    return value.item<double>();
  }

  int64_t saved_bytes() {
    ops::SavedBytesCounter counter(model_->parameters());
    const at::Tensor value = loss();
    const int64_t bytes = counter.bytes();
    value.backward();
    optimizer_.zero_grad();
    return bytes;
  }

 private:
  recipe::Recipe recipe_;
  nn::Gpt model_;
  optim::AdamW optimizer_;
  amp::GradScaler scaler_;
  at::Tensor tokens_;
};

void serve(Step& step) {
  const int64_t saved = step.saved_bytes();
  step.run();
  std::cout << nlohmann::json({{"ready", true}, {"saved_bytes", saved}}) << std::endl;
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
  CLI::App command("Plimsoll's GPT training step, run on request");
  command.add_option("--layers", options.shape.layers);
  command.add_option("--dim", options.shape.dim);
  command.add_option("--heads", options.shape.heads);
  command.add_option("--context", options.shape.context);
  command.add_option("--vocabulary", options.shape.vocabulary);
  command.add_option("--tied", options.shape.tie_embeddings);
  command.add_option("--batch", options.batch);
  command.add_option("--threads", options.threads);
  command.add_option("--recipe", options.recipe);
  CLI11_PARSE(command, argc, argv);
  try {
    at::set_num_threads(options.threads);
    torch::manual_seed(1);
    Step step(options);
    serve(step);
  } catch (const std::exception& error) {
    std::cerr << "gpt_step_worker: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
