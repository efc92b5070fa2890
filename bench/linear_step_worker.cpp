// Peer of python_modules.py --overhead: nn::Linear, forward and backward on request. Protocol on stdin and stdout, one
// JSON object a line: {"ready": true}, then for each line "step" one step and {"cpu_seconds"}; ends with stdin.
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/recipe/recipe.h"

namespace {

using namespace plimsoll;

// CPU time of all threads of this process.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Step {
 public:
  Step(int64_t rows, int64_t in, int64_t out, const std::string& recipe)
      : recipe_(recipe::from_json(recipe)), layer_(in, out), x_(at::randn({rows, in}).requires_grad_()) {
    grad_ = at::randn_like(run());
  }

  at::Tensor run() {
    at::Tensor output;
    {
      amp::Fp8Autocast scope({.recipe = recipe_});
      output = layer_->forward(x_);
    }
    if (grad_.defined()) output.backward(grad_);
    return output;
  }

  double timed() {
    const double start = cpu_seconds();
    run();
    const double seconds = cpu_seconds() - start;
    layer_->zero_grad();
    x_.mutable_grad().reset();
    return seconds;
  }

 private:
  recipe::Recipe recipe_;
  nn::Linear layer_;
  at::Tensor x_, grad_;
};

void serve(Step& step) {
  std::cout << nlohmann::json({{"ready", true}}) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << nlohmann::json({{"cpu_seconds", step.timed()}}) << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int64_t rows = 4096, in = 768, out = 3072;
  int threads = 1;
  std::string recipe = "\"fp8\"";
  CLI::App command("Plimsoll's nn::Linear, forward and backward, run on request");
  command.add_option("--rows", rows);
  command.add_option("--in", in);
  command.add_option("--out", out);
  command.add_option("--threads", threads);
  command.add_option("--recipe", recipe, "as JSON");
  CLI11_PARSE(command, argc, argv);
  try {
    at::set_num_threads(threads);
    torch::manual_seed(1);
    Step step(rows, in, out, recipe);
    serve(step);
  } catch (const std::exception& error) {
    std::cerr << "linear_step_worker: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
