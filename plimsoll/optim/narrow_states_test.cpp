// AdamW with states of fewer bits: conversions between their kinds, parts of parameters, gradients freed in backward.
#include <ATen/ops/constant_pad_nd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <memory>

#include "plimsoll/ops/torch_internals/accumulation.h"
#include "plimsoll/optim/adamw.h"

namespace plimsoll::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr StateKind kStateKinds[] = {StateKind::kFp32, StateKind::kBf16, StateKind::k8Bit};
constexpr MasterKind kMasterKinds[] = {MasterKind::kFp32, MasterKind::kSplit, MasterKind::kNone};

torch::optim::AdamWOptions quick() { return torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).weight_decay(0.1); }

// A parameter of 1000 elements that has taken three steps, and its optimizer.
struct Trained {
  Tensor weight;
  std::unique_ptr<AdamW> optimizer;

  explicit Trained(const AdamWSettings& settings, int64_t steps = 3) {
    torch::manual_seed(1);
    weight = torch::randn({1000}).to(torch::kBFloat16).set_requires_grad(true);
    optimizer = std::make_unique<AdamW>(std::vector<NamedGroup>{{{{"w", weight}}, quick()}}, settings);
    for (int64_t step = 0; step < steps; ++step) take_step(step);
  }
  void take_step(int64_t step) {
    torch::manual_seed(static_cast<uint64_t>(10 + step));
    weight.mutable_grad() = (torch::randn({1000}) * 0.1).to(torch::kBFloat16);
    optimizer->update();
  }
  Tensor state(const char* name) const { return optimizer->state_dict().at(c10::str("w.", name)).to(torch::kFloat); }
  // Moments in FP32.
  Tensor moment(const char* name) const {
    const auto states = optimizer->state_dict();
    const auto scale = states.find(c10::str("w.", name, "_scale"));
    return wide_moment({states.at(c10::str("w.", name)), scale == states.end() ? Tensor() : scale->second});
  }
};

// Units of the last place that a moment of some kind may be off: of itself, or of the largest of its group of 32.
void expect_near(const Tensor& got, const Tensor& expected, StateKind kind, bool is_root) {
  const Tensor difference = (got - expected).abs();
  if (kind == StateKind::kFp32) {
    EXPECT_TRUE(torch::equal(got, expected));
    return;
  }
  if (kind == StateKind::kBf16) {
    EXPECT_TRUE((difference <= expected.abs() * 0x1p-8).all().item<bool>());
    return;
  }
  const Tensor groups = at::constant_pad_nd(expected.abs(), {0, 24})
                            .view({-1, 32})
                            .amax(1, /*keepdim=*/true)
                            .expand({-1, 32})
                            .flatten()
                            .narrow(0, 0, 1000);
  // Half a code of m is at most 2 / 127 / 2 of the scale, where x = y / (2 - y) is steepest; a root that is not 0 may
  // be raised to a code of 1 / 255. The scale is at most 2^-10 above the largest.
  EXPECT_TRUE((difference <= groups * ((is_root ? 1.0 / 255 : 1.0 / 127) * (1 + 0x1p-10))).all().item<bool>());
}

TEST(NarrowAdamW, LoadingConvertsBetweenKindsOfMoments) {
  for (StateKind from : kStateKinds) {
    const Trained trained(AdamWSettings{.optimizer_state = from, .seed = 5});
    for (StateKind to : kStateKinds) {
      Trained other(AdamWSettings{.optimizer_state = to, .seed = 5}, 0);
      other.weight.detach().copy_(trained.weight);
      other.optimizer->load_state_dict(trained.optimizer->state_dict());
      EXPECT_EQ(other.optimizer->state_dict().at("w.exp_avg").scalar_type(), dtype_of(to, Moment::kFirst));
      const StateKind exact = from == to ? StateKind::kFp32 : to;
      expect_near(other.moment("exp_avg"), trained.moment("exp_avg"), exact, false);
      if (exact == StateKind::k8Bit) {
        expect_near(other.moment("exp_avg_sq").sqrt(), trained.moment("exp_avg_sq").sqrt(), exact, true);
      } else {
        expect_near(other.moment("exp_avg_sq"), trained.moment("exp_avg_sq"), exact, false);
      }
      EXPECT_TRUE(torch::equal(other.state("master"), trained.state("master")));
      EXPECT_TRUE(torch::equal(other.state("step"), trained.state("step")));
    }
  }
}

TEST(NarrowAdamW, LoadingConvertsBetweenKindsOfMasters) {
  for (MasterKind from : kMasterKinds) {
    const Trained trained(AdamWSettings{.masters = from, .seed = 5});
    for (MasterKind to : kMasterKinds) {
      Trained other(AdamWSettings{.masters = to, .seed = 5}, 0);
      other.weight.detach().copy_(trained.weight);
      other.optimizer->load_state_dict(trained.optimizer->state_dict());
      EXPECT_TRUE(torch::equal(other.weight, trained.weight));
      if (to == MasterKind::kNone) continue;
      const auto value = [](const Trained& of, MasterKind kind) {
        if (kind == MasterKind::kNone) return of.weight.detach().to(torch::kFloat);
        if (kind == MasterKind::kFp32) return of.state("master");
        return join_weight(of.weight.detach(), of.optimizer->state_dict().at("w.correction"));
      };
      // Half a code of 127 of half an ulp of BF16, 2^-8 of the weight, as a split weight has it.
      const double relative = to == MasterKind::kSplit && from == MasterKind::kFp32 ? 0x1p-8 / 254 : 0;
      const Tensor expected = value(trained, from), got = value(other, to);
      EXPECT_TRUE(((got - expected).abs() <= expected.abs() * relative).all().item<bool>());
    }
  }
}

TEST(NarrowAdamW, PartsHaveTheBitsOfTheWhole) {
  for (StateKind states : kStateKinds) {
    for (MasterKind masters : kMasterKinds) {
      const AdamWSettings settings{.optimizer_state = states, .masters = masters, .seed = 5, .places = {{.number = 7}}};
      const Trained whole(settings);
      Trained start(settings, 0);
      const std::vector<std::pair<int64_t, int64_t>> ranges = {{0, 480}, {480, 1000}};
      for (const auto& [begin, end] : ranges) {
        const Tensor part = start.weight.detach().narrow(0, begin, end - begin).clone().set_requires_grad(true);
        AdamWSettings own = settings;
        own.places = {{.number = 7, .begin = begin}};
        AdamW optimizer({{{{"w", part}}, quick()}}, own);
        for (int64_t step = 0; step < 3; ++step) {
          torch::manual_seed(static_cast<uint64_t>(10 + step));
          part.mutable_grad() =
              (torch::randn({1000}) * 0.1).to(torch::kBFloat16).narrow(0, begin, end - begin).contiguous();
          optimizer.update();
        }
        EXPECT_TRUE(torch::equal(part, whole.weight.narrow(0, begin, end - begin)));
      }
    }
  }
}

// Layers of 64 x 64 in a row.
struct Chain {
  NamedParameters parameters;
  explicit Chain(int64_t layers = 6) {
    torch::manual_seed(3);
    for (int64_t i = 0; i < layers; ++i)
      parameters.insert(c10::str("w", i), (torch::randn({64, 64}) / 8).set_requires_grad(true));
  }
  Tensor loss(int64_t step, double factor = 1) const {
    torch::manual_seed(static_cast<uint64_t>(step));
    Tensor x = torch::randn({5, 64});
    for (const auto& item : parameters) x = x.matmul(item.value()).tanh();
    return x.square().mean() * factor;
  }
  size_t gradients() const {
    size_t count = 0;
    for (const auto& item : parameters) count += item.value().grad().defined() ? 1 : 0;
    return count;
  }
};

TEST(GradientRelease, HasTheBitsOfTheUpdateAfterBackwardAndOneGradientAtATime) {
  for (StateKind states : kStateKinds) {
    const Chain released, kept;
    const AdamWSettings settings{.optimizer_state = states, .seed = 5};
    AdamW of_released(one_group(released.parameters, quick()), settings),
        of_kept(one_group(kept.parameters, quick()), settings);
    size_t most = 0, most_kept = 0;
    // A tensor's hooks run before its gradient is added.
    for (const auto& item : released.parameters)
      item.value().register_hook([&](const Tensor&) { most = std::max(most, released.gradients() + 1); });
    for (int64_t step = 0; step < 4; ++step) {
      {
        const GradientRelease release = of_released.release_gradients();
        released.loss(step).backward();
      }
      kept.loss(step).backward();
      most_kept = std::max(most_kept, kept.gradients());
      const StepReport report = of_released.update(), expected = of_kept.update();
      of_kept.zero_grad();
      EXPECT_EQ(released.gradients(), 0u);
      // Sums of squares in another order, over as many as there are elements.
      EXPECT_NEAR(report.grad_norm, expected.grad_norm, expected.grad_norm * 6 * 64 * 64 * 0x1p-53);
      for (const auto& item : kept.parameters)
        EXPECT_TRUE(torch::equal(released.parameters[item.key()], item.value())) << item.key() << " step " << step;
    }
    EXPECT_EQ(most, 1u) << "bytes of gradients at the peak: those of one parameter";
    EXPECT_EQ(most_kept, 6u);
  }
}

TEST(GradientRelease, GradientsOfSeveralBackwardPassesAreReleasedInTheLast) {
  const Chain released, kept;
  AdamW of_released(one_group(released.parameters, quick())), of_kept(one_group(kept.parameters, quick()));
  released.loss(0).backward();
  {
    const GradientRelease release = of_released.release_gradients();
    released.loss(1).backward();
  }
  kept.loss(0).backward();
  kept.loss(1).backward();
  of_kept.update();
  for (const auto& item : kept.parameters) EXPECT_TRUE(torch::equal(released.parameters[item.key()], item.value()));
  released.loss(2).backward();
  EXPECT_EQ(released.gradients(), 6u) << "the release has ended";
}

TEST(GradientRelease, AGradientThatIsNotFiniteLeavesItsParameterAsItWas) {
  const Chain chain;
  AdamW optimizer(one_group(chain.parameters, quick()));
  const Tensor before = chain.parameters["w0"].detach().clone();
  chain.parameters["w0"].register_hook([](const Tensor& grad) { return grad / 0; });
  {
    const GradientRelease release = optimizer.release_gradients();
    chain.loss(0).backward();
  }
  const StepReport report = optimizer.update();
  EXPECT_EQ(report.non_finite, 64 * 64);
  EXPECT_EQ(report.first_non_finite, "w0");
  EXPECT_FALSE(report.skipped);
  EXPECT_TRUE(torch::equal(chain.parameters["w0"], before));
  EXPECT_EQ(optimizer.state_dict().at("w0.step").item<int64_t>(), 0);
  EXPECT_EQ(optimizer.state_dict().at("w1.step").item<int64_t>(), 1);
}

TEST(GradientRelease, ClippingAndALossScaleAreOneError) {
  const Chain chain;
  AdamW optimizer(one_group(chain.parameters, quick()));
  const auto refused =
      ThrowsMessage<c10::Error>(HasSubstr("released in backward without clipping by their whole norm"));
  EXPECT_THAT([&] { const GradientRelease release = optimizer.release_gradients({.max_norm = 1}); }, refused);
  EXPECT_THAT([&] { const GradientRelease release = optimizer.release_gradients({.inv_loss_scale = 0.5}); }, refused);
  {
    const GradientRelease release = optimizer.release_gradients();
    chain.loss(0).backward();
  }
  EXPECT_THAT([&] { optimizer.update({.max_norm = 1}); }, refused);
  EXPECT_THAT([&] { optimizer.update({.inv_loss_scale = 0x1p-10}); }, refused);
  EXPECT_FALSE(optimizer.update().skipped);
  chain.loss(1).backward();
  EXPECT_FALSE(optimizer.update({.max_norm = 1}).skipped) << "nothing was released for this one";
}

TEST(GradientRelease, AParameterWhoseGradientSomethingElseWaitsForIsRefused) {
  const Chain chain;
  AdamW optimizer(one_group(chain.parameters, quick()));
  ops::hook_accumulation(chain.parameters["w3"], [] {});
  EXPECT_THAT([&] { const GradientRelease release = optimizer.release_gradients(); },
              ThrowsMessage<c10::Error>(HasSubstr("with a hook on its accumulation")));
  EXPECT_FALSE(ops::has_accumulation_hook(chain.parameters["w0"]));
}

}  // namespace
}  // namespace plimsoll::optim
