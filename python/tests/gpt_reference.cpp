// Steps of models::Gpt under a recipe, for gpt_test.py and auto_recipe_test.py: gpt_reference RECIPE FILE STEPS writes the
// parameters, and for each step the tokens, the logits, the gradients, the scaling state and, under `auto`, the state of the
// controller after it, as a dictionary that torch.load reads.
#include <ATen/Context.h>
#include <ATen/core/Dict.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn_like.h>
#include <torch/serialize.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/ops/scaling/precision_json.h"

int main(int argc, char** argv) {
  using namespace plimsoll;
  if (argc != 4) {
    std::cerr << "usage: gpt_reference RECIPE FILE STEPS\n";
    return 2;
  }
  std::shared_ptr<ops::PrecisionController> precision;
  if (recipe::is_automatic(argv[1])) {
    precision = std::make_shared<ops::PrecisionController>(recipe::automatic_from_text(argv[1]));
  }
  const recipe::Recipe recipe = precision == nullptr ? recipe::from_json(argv[1]) : precision->recipe().at({});
  const int64_t steps = std::stoll(argv[3]);
  c10::Dict<std::string, at::Tensor> values;
  const auto keep = [&](const std::string& prefix, const auto& named) {
    for (const auto& item : named) values.insert(prefix + item.key(), item.value().detach().clone());
  };
  at::manual_seed(7);
  const models::GptConfig shape{.vocabulary = 50, .layers = 2, .dim = 32, .heads = 4, .context = 12};
  models::Gpt model(shape);
  keep("parameter ", model->named_parameters());
  for (int64_t number = 0; number < steps; ++number) {
    const std::string step = std::to_string(number) + " ";
    const at::Tensor tokens = at::randint(shape.vocabulary, {3, shape.context}, at::kLong);
    at::Tensor logits;
    model->zero_grad();
    {
      amp::Fp8Autocast scope({.recipe = recipe, .precision = precision});
      logits = model->forward(tokens);
    }
    const at::Tensor grad = at::randn_like(logits);
    logits.backward(grad);
    values.insert(step + "tokens", tokens);
    values.insert(step + "logits", logits.detach());
    values.insert(step + "grad", grad);
    keep(step + "buffer ", model->named_buffers());
    for (const auto& parameter : model->named_parameters()) {
      values.insert(step + "gradient " + parameter.key(), parameter.value().grad().clone());
    }
    if (precision == nullptr) continue;
    precision->end_step({.step = number, .steps = steps}, nullptr);
    const std::string state = ops::state_of(*precision).dump();
    const at::Tensor text = at::empty({static_cast<int64_t>(state.size())}, at::kByte);
    std::ranges::copy(state, text.data_ptr<uint8_t>());
    values.insert(step + "controller", text);
  }
  const std::vector<char> bytes = torch::pickle_save(values);
  std::ofstream(argv[2], std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
