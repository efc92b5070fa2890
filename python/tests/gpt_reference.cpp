// Two steps of models::Gpt under a recipe, for gpt_test.py: gpt_reference RECIPE FILE writes the parameters, and for
// each step the tokens, the logits, the gradients and the scaling state, as a dictionary that torch.load reads.
#include <ATen/Context.h>
#include <ATen/core/Dict.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn_like.h>
#include <torch/serialize.h>

#include <fstream>
#include <iostream>
#include <string>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/models/gpt/model.h"

int main(int argc, char** argv) {
  using namespace plimsoll;
  if (argc != 3) {
    std::cerr << "usage: gpt_reference RECIPE FILE\n";
    return 2;
  }
  c10::Dict<std::string, at::Tensor> values;
  const auto keep = [&](const std::string& prefix, const auto& named) {
    for (const auto& item : named) values.insert(prefix + item.key(), item.value().detach().clone());
  };
  at::manual_seed(7);
  const models::GptConfig shape{.vocabulary = 50, .layers = 2, .dim = 32, .heads = 4, .context = 12};
  models::Gpt model(shape);
  keep("parameter ", model->named_parameters());
  for (const std::string step : {"0 ", "1 "}) {
    const at::Tensor tokens = at::randint(shape.vocabulary, {3, shape.context}, at::kLong);
    at::Tensor logits;
    model->zero_grad();
    {
      amp::Fp8Autocast scope({.recipe = recipe::from_json(argv[1])});
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
  }
  const std::vector<char> bytes = torch::pickle_save(values);
  std::ofstream(argv[2], std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
