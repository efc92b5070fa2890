// Steps of a team of threads against the layers that they describe: the same bits.
#include "plimsoll/models/team/step.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>

#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/team/testing.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

TEST(TeamStep, GivesTheBitsOfAGptsLayers) {
  const at::NoGradGuard no_grad;
  for (const bool tied : {false, true}) {
    for (const auto kind : {nn::Normalization::kLayerNorm, nn::Normalization::kRmsNorm}) {
      for (const std::string dtype : {"fp32", "bf16", "fp16", "codes"}) {
        at::manual_seed(3);
        Gpt model(GptConfig{.vocabulary = 77,
                            .layers = 2,
                            .dim = 40,
                            .heads = 5,
                            .context = 16,
                            .tie_embeddings = tied,
                            .normalization = kind});
        for (const at::Tensor& parameter : model->parameters()) {
          if (parameter.dim() == 1) at::Tensor(parameter).uniform_(-1, 1);
        }
        model->to(dtype == "codes" ? at::kBFloat16 : ops::dtype_of(ops::parse_format(dtype, "test")));
        if (dtype == "codes") nn::hold_codes(*model);
        model->eval();
        testing::expect_bits_of_layers(*model, dtype);
      }
    }
  }
}

TEST(TeamStep, LeavesToTheLayersWhatTheyDoOtherwise) {
  const at::NoGradGuard no_grad;
  Gpt model(GptConfig{.vocabulary = 40, .layers = 2, .dim = 32, .heads = 4, .context = 12});
  model->eval();
  const at::Tensor tokens = at::randint(40, {1, 4}, at::kLong), token = tokens.narrow(1, 0, 1);
  TokenCache cache = model->make_cache({.capacity = 12});
  EXPECT_FALSE(model->step(token, cache).defined()) << "the first of a cache";
  model->extend(tokens, cache);
  EXPECT_FALSE(model->step(tokens, cache).defined()) << "several tokens";
  EXPECT_FALSE(model->step(tokens.t(), cache).defined()) << "another batch";
  model->train();
  EXPECT_FALSE(model->step(token, cache).defined()) << "dropout";
  model->eval();
  {
    const watch::Session session({.mode = watch::Mode::kCount});
    EXPECT_FALSE(model->step(token, cache).defined()) << "watched";
  }
  nn::ForwardHooks& hooks = *model->units().back().hooks;
  hooks.before = [] {};
  EXPECT_FALSE(model->step(token, cache).defined()) << "weights that come and go";
  hooks.before = {};
  EXPECT_EQ(cache.length(), 4);
  EXPECT_TRUE(model->step(token, cache).defined());
  EXPECT_THROW(model->extend(at::full({1, 1}, 40, at::kLong), cache), c10::Error);
  EXPECT_EQ(cache.length(), 5);
  model->to(at::kBFloat16);
  EXPECT_FALSE(model->step(token, cache).defined()) << "a cache of another dtype";
}

}  // namespace
}  // namespace plimsoll::models
