// norm_linear and norm_mlp against the ops that they are made of.
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <utility>

#include "plimsoll/ops/activation/activation.h"
#include "plimsoll/ops/fused/norm_linear.h"
#include "plimsoll/ops/fused/norm_mlp.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using format::Format;
using kernels::Activation;
using kernels::NormKind;
using testing::expect_equal;
using testing::leaf;
using testing::sample;
using testing::scaling_of;
using testing::shared;
using Tensors = std::vector<at::Tensor>;

// FP32 between the ops, so that neither side rounds there.
std::vector<SharedRecipe> wide_recipes() {
  constexpr Format kWide = Format::kFp32;
  return {shared(recipe::HighPrecision{kWide}),
          shared(recipe::DelayedScaling{.high_precision_format = kWide}),
          shared(recipe::DelayedScaling{.override_linear_precision = {.output = true}, .high_precision_format = kWide}),
          shared(recipe::DelayedScaling{.override_linear_precision = {.grad_weight = true},
                                        .high_precision_format = kWide}),
          shared(recipe::CurrentScaling{.high_precision_format = kWide}),
          shared(recipe::CurrentScaling{.granularity = recipe::kPerRow, .high_precision_format = kWide}),
          shared(recipe::BlockScaling{.high_precision_format = kWide}),
          shared(recipe::Mxfp8{.high_precision_format = kWide}),
          shared(recipe::Nvfp4Scaling{.high_precision_format = kWide}),
          shared(recipe::Nvfp4Scaling{.four_over_six = true, .high_precision_format = kWide}),
          shared(recipe::Nvfp4Scaling{.ms_eden = true, .high_precision_format = kWide}),
          shared(recipe::Nvfp4Scaling{.backward_override = recipe::BackwardOverride::kDequantized,
                                      .high_precision_format = kWide}),
          shared(recipe::Mxfp4Scaling{.high_precision_format = kWide}),
          shared(recipe::DelayedScaling{.backward_override = recipe::BackwardOverride::kDequantized,
                                        .high_precision_format = kWide}),
          shared(recipe::Mxfp8{.backward_override = recipe::BackwardOverride::kDequantized,
                               .high_precision_format = kWide})};
}

// {outputs..., gradients of the leaves...} of the second step, when delayed scales are known, and of the first.
using Forward = std::function<Tensors(const Tensors&)>;
Tensors run(const Forward& forward, const Tensors& values, const Tensors& grads,
            const std::vector<LinearScaling>& layers) {
  Tensors result;
  for (int step = 0; step < 2; ++step) {
    Tensors leaves;
    for (const at::Tensor& value : values) leaves.push_back(value.defined() ? leaf(value) : value);
    const Tensors outputs = forward(leaves);
    Tensors seeds;
    for (size_t i = 0; i < outputs.size(); ++i) seeds.push_back(grads[i].to(outputs[i].scalar_type()));
    torch::autograd::backward(outputs, seeds);
    for (const at::Tensor& output : outputs) result.push_back(output.detach());
    for (const at::Tensor& parameter : leaves) result.push_back(parameter.defined() ? parameter.grad() : parameter);
    for (const LinearScaling& scaling : layers) scaling.step->end_forward();
  }
  for (const LinearScaling& scaling : layers) {
    for (recipe::Role role : {recipe::Role::kInput, recipe::Role::kWeight, recipe::Role::kGradOutput}) {
      result.push_back(scaling.state->slot(role).scale);
      result.push_back(scaling.state->slot(role).amax_history);
    }
  }
  return result;
}

// The share of the norm that is off. Each operand rounding adds at most one unit roundoff to it.
double distance(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

void expect_all_equal(const Tensors& fused, const Tensors& unfused, const std::string& what) {
  ASSERT_EQ(fused.size(), unfused.size());
  for (size_t i = 0; i < fused.size(); ++i) expect_equal(fused[i], unfused[i], what + ", tensor " + std::to_string(i));
}

Tensors outputs_of(const NormOutput& output) {
  return output.sum.defined() ? Tensors{output.output, output.sum} : Tensors{output.output};
}

NormInput norm_input(const Tensors& t) { return {.x = t[0], .residual = t[1], .weight = t[2], .bias = t[3]}; }

struct NormCase {
  NormKind kind;
  bool residual;
};
constexpr NormCase kNorms[] = {{NormKind::kLayerNorm, true}, {NormKind::kLayerNorm, false}, {NormKind::kRmsNorm, true}};

Tensors norm_values(const NormCase& norm, int64_t tokens, int64_t dim) {
  const at::Tensor none;
  return {sample({tokens, dim}), norm.residual ? sample({tokens, dim}) : none, sample({dim}) + 1,
          norm.kind == NormKind::kLayerNorm ? sample({dim}) : none};
}

TEST(NormLinear, HasTheBitsOfNormThenLinear) {
  at::manual_seed(1);
  constexpr int64_t kTokens = 37, kDim = 70, kOut = 50;
  for (const NormCase& norm_case : kNorms) {
    const NormOptions options{.kind = norm_case.kind, .zero_centered = norm_case.residual};
    Tensors values = norm_values(norm_case, kTokens, kDim);
    values.insert(values.end(), {sample({kOut, kDim}, 0.1), sample({kOut})});
    const Tensors grads = {sample({kTokens, kOut}), sample({kTokens, kDim})};
    for (const SharedRecipe& recipe : wide_recipes()) {
      const LinearScaling fused = scaling_of(recipe), unfused = scaling_of(recipe);
      const auto fused_forward = [&](const Tensors& t) {
        return outputs_of(norm_linear(norm_input(t), options, t[4], t[5], fused));
      };
      const auto unfused_forward = [&](const Tensors& t) {
        NormOutput normalised = norm(norm_input(t), options);
        normalised.output = linear(normalised.output, t[4], t[5], unfused);
        return outputs_of(normalised);
      };
      expect_all_equal(run(fused_forward, values, grads, {fused}), run(unfused_forward, values, grads, {unfused}),
                       std::string(recipe->name()));
    }
  }
}

TEST(NormMlp, HasTheBitsOfItsParts) {
  at::manual_seed(2);
  constexpr int64_t kTokens = 37, kDim = 36, kHidden = 66;
  for (const auto& [kind, text, curve, gated, parameters] : kernels::kActivations) {
    const NormCase& norm_case = kNorms[static_cast<size_t>(kind) % 3];
    const NormOptions options{.kind = norm_case.kind};
    const int64_t fc1_out = kernels::is_gated(kind) ? 2 * kHidden : kHidden;
    Tensors values = norm_values(norm_case, kTokens, kDim);
    values.insert(values.end(), {sample({fc1_out, kDim}, 0.2), sample({fc1_out}), sample({kDim, kHidden}, 0.2),
                                 kind == Activation::kRelu ? at::Tensor() : sample({kDim})});
    const Tensors grads = {sample({kTokens, kDim}), sample({kTokens, kDim})};
    for (const SharedRecipe& recipe : wide_recipes()) {
      const MlpScaling fused{scaling_of(recipe), scaling_of(recipe)}, unfused{scaling_of(recipe), scaling_of(recipe)};
      const auto fused_forward = [&](const Tensors& t) {
        return outputs_of(norm_mlp(norm_input(t), options, {t[4], t[5], t[6], t[7]}, kind, fused));
      };
      const auto unfused_forward = [&](const Tensors& t) {
        NormOutput result = norm(norm_input(t), options);
        const at::Tensor pre = linear(result.output, t[4], t[5], unfused.fc1);
        result.output = linear(activation(pre, kind), t[6], t[7], unfused.fc2);
        return outputs_of(result);
      };
      Tensors got = run(fused_forward, values, grads, {fused.fc1, fused.fc2});
      Tensors expected = run(unfused_forward, values, grads, {unfused.fc1, unfused.fc2});
      const std::string what = std::string(name(kind)) + " " + std::string(recipe->name());
      // The sum over tokens for fc1's bias runs in the epilogue, in another order: that many roundings of terms that
      // may cancel to one of them.
      const size_t outputs = norm_case.residual ? 2 : 1, per_step = outputs + values.size();
      for (const size_t bias : {outputs + 5, per_step + outputs + 5}) {
        EXPECT_LE(distance(std::exchange(got[bias], {}), std::exchange(expected[bias], {}).to(at::kDouble)),
                  kTokens * kTokens * 0x1p-24)
            << what;
      }
      expect_all_equal(got, expected, what);
    }
  }
}

TEST(NormMlp, GradientsOfEveryRecipeAreNearDouble) {
  at::manual_seed(3);
  constexpr int64_t kTokens = 96, kDim = 64, kHidden = 128;
  const Tensors values = {
      sample({kTokens, kDim}),      at::Tensor(),           sample({kDim}) * 0.1 + 1,     sample({kDim}) * 0.1,
      sample({kHidden, kDim}, 0.1), sample({kHidden}, 0.1), sample({kDim, kHidden}, 0.1), sample({kDim})};
  const Tensors grads = {sample({kTokens, kDim})};
  const auto in_double = [&](const Tensors& t) -> Tensors {
    const at::Tensor normalised = at::layer_norm(t[0], {kDim}, t[2], t[3]);
    return {at::linear(at::gelu(at::linear(normalised, t[4], t[5]), "tanh"), t[6], t[7])};
  };
  Tensors doubles;
  for (const at::Tensor& value : values) doubles.push_back(value.defined() ? leaf(value, at::kDouble) : value);
  const Tensors exact_output = in_double(doubles);
  torch::autograd::backward(exact_output, {grads[0].to(at::kDouble)});

  for (const SharedRecipe& recipe : testing::recipes_of_eight_bits()) {
    const MlpScaling scaling{scaling_of(recipe), scaling_of(recipe)};
    const auto forward = [&](const Tensors& t) {
      return outputs_of(norm_mlp(norm_input(t), {}, {t[4], t[5], t[6], t[7]}, Activation::kGelu, scaling));
    };
    const Tensors got = run(forward, values, grads, {});
    const bool has_codes = !recipe->high_precision();
    const Format narrowest = !has_codes ? recipe->high_precision_format()
                             : recipe->delayed() || recipe->name() == "fp8-current" || recipe->name() == "fp8-row"
                                 ? Format::kE5m2
                                 : Format::kE4m3;
    // Longest path: four forward operands, three gradient operands, two intermediates in high precision.
    const double bound = 9 * std::max(testing::unit_roundoff(narrowest), 0x1p-20);
    const std::string name(recipe->name());
    EXPECT_LE(distance(got[0], exact_output[0].detach()), bound) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i].defined()) continue;
      EXPECT_LE(distance(got[1 + i], doubles[i].grad()), bound) << name << ", gradient " << i;
    }
  }
}

TEST(NormMlp, BitsDoNotDependOnThreadsOrOnGradMode) {
  at::manual_seed(4);
  constexpr int64_t kTokens = 200, kDim = 64, kHidden = 96;
  Tensors values = norm_values({NormKind::kLayerNorm, true}, kTokens, kDim);
  values.insert(values.end(),
                {sample({kHidden, kDim}, 0.2), sample({kHidden}), sample({kDim, kHidden}, 0.2), sample({kDim})});
  const Tensors grads = {sample({kTokens, kDim}), sample({kTokens, kDim})};
  for (const SharedRecipe& recipe : testing::every_recipe()) {
    const auto with_threads = [&](int count) {
      const testing::ScopedThreads threads(count);
      const MlpScaling scaling{scaling_of(recipe), scaling_of(recipe)};
      return run(
          [&](const Tensors& t) {
            return outputs_of(norm_mlp(norm_input(t), {}, {t[4], t[5], t[6], t[7]}, Activation::kGelu, scaling));
          },
          values, grads, {scaling.fc1, scaling.fc2});
    };
    const Tensors one = with_threads(1);
    expect_all_equal(one, with_threads(2), std::string(recipe->name()));
    const at::NoGradGuard no_grad;
    const NormOutput inference = norm_mlp(norm_input(values), {}, {values[4], values[5], values[6], values[7]},
                                          Activation::kGelu, {scaling_of(recipe), scaling_of(recipe)});
    expect_equal(inference.output, one[0], std::string(recipe->name()));
  }
}

TEST(NormMlp, SavesTheSumAndThePreActivation) {
  constexpr int64_t kTokens = 64, kDim = 32, kHidden = 128;
  Tensors values = norm_values({NormKind::kLayerNorm, true}, kTokens, kDim);
  values.insert(values.end(), {sample({kHidden, kDim}), sample({kHidden}), sample({kDim, kHidden}), sample({kDim})});
  for (at::Tensor& value : values) value = leaf(value, at::kBFloat16);
  const MlpScaling scaling{scaling_of(shared(recipe::by_name("fp8"))), scaling_of(shared(recipe::by_name("fp8")))};
  const SavedBytesCounter counter(values);
  const NormOutput output =
      norm_mlp(norm_input(values), {}, {values[4], values[5], values[6], values[7]}, Activation::kGelu, scaling);
  const int64_t statistics = 2 * 4 * kTokens, weights = 2 * kDim * kHidden, scales = 2 * 4;
  EXPECT_EQ(counter.bytes(), 2 * kTokens * (kDim + kHidden) + statistics + weights + scales);
}

TEST(NormLinear, TakesNoTokensAndFrozenParts) {
  at::manual_seed(5);
  for (const SharedRecipe& recipe : testing::every_recipe()) {
    const at::Tensor weight = leaf(sample({6, 8}));
    const at::Tensor x = at::empty({0, 8}).requires_grad_(true);
    const NormInput input{.x = x, .weight = at::ones({8})};
    torch::autograd::backward({norm_linear(input, {}, weight, {}, scaling_of(recipe)).output.sum()});
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(weight.grad().abs().max().item<float>(), 0.0f);

    const at::Tensor alone = leaf(sample({4, 8}));
    torch::autograd::backward(
        {norm_linear({.x = alone, .weight = at::ones({8})}, {}, weight.detach(), {}, scaling_of(recipe)).output.sum()});
    EXPECT_TRUE(alone.grad().defined());
  }
}

TEST(NormLinear, RefusesWhatDoesNotFit) {
  const at::Tensor x = sample({4, 8}), weight = sample({6, 8}), ones = at::ones({8});
  EXPECT_THROW(norm_linear({.x = x, .residual = sample({4, 7}), .weight = ones}, {}, weight, {}, {}), c10::Error);
  EXPECT_THROW(norm_linear({.x = x, .weight = at::ones({7})}, {}, weight, {}, {}), c10::Error);
  EXPECT_THROW(norm_linear({.x = x, .weight = ones, .bias = ones}, {.kind = NormKind::kRmsNorm}, weight, {}, {}),
               c10::Error);
  EXPECT_THROW(norm_mlp({.x = x, .weight = ones}, {}, {.fc1_weight = sample({5, 8}), .fc2_weight = sample({8, 2})},
                        Activation::kSwiglu, {}),
               c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
