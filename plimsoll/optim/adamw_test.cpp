#include "plimsoll/optim/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace plimsoll::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::optim::AdamWOptions;

constexpr double kUnit = 0x1p-24;  // half an ulp of FP32

AdamWOptions options() { return AdamWOptions(1e-2).betas({0.9, 0.95}).weight_decay(0.1); }

// A matrix, a vector and a parameter that has no gradient in odd steps.
NamedParameters make_parameters(torch::Dtype dtype = torch::kFloat32) {
  torch::manual_seed(1);
  NamedParameters parameters;
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"fc.weight", {37, 53}}, {"fc.bias", {37}}, {"sometimes", {5, 3}}}) {
    parameters.insert(name, torch::randn(shape).to(dtype).set_requires_grad(true));
  }
  return parameters;
}

// The same gradients for every call with one step number, representable in bf16.
void set_gradients(const NamedParameters& parameters, int64_t step, double factor = 1) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  for (const auto& item : parameters) {
    const Tensor grad = (torch::randn(item.value().sizes()) * 0.1).to(torch::kBFloat16).to(torch::kFloat64) * factor;
    if (item.key() == "sometimes" && step % 2 == 1) {
      item.value().mutable_grad() = Tensor();
    } else {
      item.value().mutable_grad() = grad.to(item.value().scalar_type());
    }
  }
}

std::map<std::string, Tensor> copies(const std::map<std::string, Tensor>& state) {
  std::map<std::string, Tensor> result;
  for (const auto& [name, tensor] : state) result[name] = tensor.clone();
  return result;
}

bool same(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && torch::equal(x.second, y.second);
         });
}

bool same(const NamedParameters& a, const NamedParameters& b) {
  for (const auto& item : a) {
    if (!torch::equal(item.value(), b[item.key()])) return false;
  }
  return a.size() == b.size();
}

// Bound, to first order, of the error that FP32 adds to an element in each step: 3 roundings of the weight; the first
// moment's own, 4 a step and kept with beta1, so 4 / (1 - beta1) of the largest gradient; 7 a step of the second
// moment, halved by the root; 8 in the quotient.
class ErrorBound {
 public:
  explicit ErrorBound(const Tensor& weight)
      : bound_(torch::zeros_like(weight)), moment1_(bound_), moment2_(bound_), largest_(bound_) {}

  void step(const Tensor& weight, const Tensor& grad, const AdamWOptions& o) {
    const auto [beta1, beta2] = o.betas();
    ++step_;
    largest_ = torch::maximum(largest_, grad.abs());
    moment1_ = beta1 * moment1_ + (1 - beta1) * grad;
    moment2_ = beta2 * moment2_ + (1 - beta2) * grad * grad;
    const double step_size = o.lr() / (1 - std::pow(beta1, step_));
    const Tensor denominator = (moment2_ / (1 - std::pow(beta2, step_))).sqrt() + o.eps();
    const Tensor change = (step_size * moment1_ / denominator).abs();
    bound_ = bound_ + kUnit * (3 * weight.abs() + step_size * 4 / (1 - beta1) * largest_ / denominator +
                               change * (3.5 * step_ + 8));
  }
  Tensor value() const { return 1.25 * bound_; }  // a quarter for the higher orders

 private:
  Tensor bound_, moment1_, moment2_, largest_;
  int step_ = 0;
};

TEST(AdamW, FollowsTorchWithinRounding) {
  const NamedParameters ours = make_parameters(), exact = make_parameters(torch::kFloat64);
  const std::vector<NamedGroup> groups = decay_groups(ours, options());
  AdamW optimizer(groups);
  std::vector<torch::optim::OptimizerParamGroup> torch_groups;
  for (const NamedGroup& group : groups) {
    std::vector<Tensor> members;
    for (const auto& [name, parameter] : group.parameters) members.push_back(exact[name]);
    torch_groups.emplace_back(members, std::make_unique<AdamWOptions>(group.options));
  }
  torch::optim::AdamW reference(torch_groups, AdamWOptions());
  std::map<std::string, ErrorBound> bounds;
  for (const auto& item : exact) bounds.emplace(item.key(), ErrorBound(item.value().detach()));
  for (int64_t step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(exact, step);
    EXPECT_FALSE(optimizer.update().skipped);
    reference.step();
    const torch::NoGradGuard no_grad;
    for (const auto& item : exact) {
      if (!item.value().grad().defined()) continue;
      ErrorBound& bound = bounds.at(item.key());
      bound.step(item.value(), item.value().grad(), options());
      const Tensor error = (ours[item.key()].to(torch::kFloat64) - item.value()).abs();
      EXPECT_TRUE((error <= bound.value()).all().item<bool>()) << item.key() << " step " << step;
    }
  }
}

TEST(AdamW, VectorsDoNotDecayInDecayGroups) {
  const std::vector<NamedGroup> groups = decay_groups(make_parameters(), options());
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].options.weight_decay(), 0.1);
  EXPECT_EQ(groups[1].options.weight_decay(), 0);
  ASSERT_EQ(groups[1].parameters.size(), 1u);
  EXPECT_EQ(groups[1].parameters[0].first, "fc.bias");
}

TEST(AdamW, GroupOptionsAreNotReplacedByDefaults) {
  // 1e-2 is AdamWOptions' own default, which torch's base class takes for "not set".
  std::vector<NamedGroup> groups = one_group(make_parameters(), AdamWOptions(1e-3).weight_decay(1e-2));
  groups.push_back({{{"other", torch::zeros({2})}}, AdamWOptions(1.0).weight_decay(0.5)});
  AdamW optimizer(groups);
  const auto decay = [&](size_t g) {
    return static_cast<const AdamWOptions&>(optimizer.param_groups()[g].options()).weight_decay();
  };
  EXPECT_EQ(decay(0), 1e-2);
  EXPECT_EQ(decay(1), 0.5);
  optimizer.set_lr(0.25);
  for (const auto& group : optimizer.param_groups()) EXPECT_EQ(group.options().get_lr(), 0.25);
}

TEST(AdamW, NarrowParametersFollowTheirMasters) {
  for (torch::Dtype dtype : {torch::kBFloat16, torch::kFloat16}) {
    const NamedParameters narrow = make_parameters(dtype), wide = make_parameters(dtype);
    NamedParameters masters;
    for (const auto& item : wide) masters.insert(item.key(), item.value().detach().to(torch::kFloat32));
    AdamW of_narrow(one_group(narrow, options())), of_wide(one_group(masters, options()));
    for (int64_t step = 0; step < 5; ++step) {
      set_gradients(narrow, step);
      for (const auto& item : narrow) {
        const Tensor grad = item.value().grad();
        masters[item.key()].mutable_grad() = grad.defined() ? grad.to(torch::kFloat32) : grad;
      }
      of_narrow.update();
      of_wide.update();
    }
    const auto state = of_narrow.state_dict();
    for (const auto& item : masters) {
      EXPECT_TRUE(torch::equal(state.at(item.key() + ".master"), item.value()));
      EXPECT_TRUE(torch::equal(narrow[item.key()], item.value().to(dtype)));
    }
  }
}

TEST(AdamW, SmallUpdatesAddUpInTheMaster) {
  NamedParameters parameters;
  parameters.insert("w", torch::ones({4}, torch::kBFloat16).set_requires_grad(true));
  AdamW optimizer(one_group(parameters, AdamWOptions(1e-4).weight_decay(0)));
  for (int step = 0; step < 200; ++step) {
    parameters["w"].mutable_grad() = torch::ones({4}, torch::kBFloat16);
    optimizer.update();
  }
  // 200 steps of lr each; half a unit of bf16 below 1 is 2^-9, twenty of them, so a bf16 weight alone would not have
  // moved.
  EXPECT_TRUE(torch::equal(parameters["w"], torch::full({4}, 0.98).to(torch::kBFloat16)));
}

TEST(AdamW, NonFiniteGradientSkipsTheStepAndSaysWhere) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const NamedParameters parameters = make_parameters(), untouched = make_parameters();
    AdamW optimizer(one_group(parameters, options()));
    const auto before = copies(optimizer.state_dict());
    set_gradients(parameters, 0);
    parameters["fc.bias"].mutable_grad()[3] = bad;
    const StepReport report = optimizer.update({.max_norm = 1});
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(report.non_finite, 1);
    EXPECT_EQ(report.first_non_finite, "fc.bias");
    EXPECT_FALSE(std::isfinite(report.grad_norm));
    EXPECT_TRUE(same(parameters, untouched));
    EXPECT_TRUE(same(optimizer.state_dict(), before));
    EXPECT_EQ(optimizer.skipped_steps(), 1);
    set_gradients(parameters, 0);
    EXPECT_FALSE(optimizer.update().skipped);
    EXPECT_FALSE(same(parameters, untouched));
    EXPECT_EQ(optimizer.skipped_steps(), 1);
  }
}

TEST(AdamW, ClipsByTheGlobalNormWithoutTouchingTheGradients) {
  const NamedParameters parameters = make_parameters();
  AdamW optimizer(one_group(parameters, options()));
  set_gradients(parameters, 0);
  double sum = 0;
  std::vector<Tensor> before;
  for (const auto& item : parameters) {
    before.push_back(item.value().grad().clone());
    sum += item.value().grad().to(torch::kFloat64).square().sum().item<double>();
  }
  const double norm = std::sqrt(sum);
  const StepReport report = optimizer.update({.max_norm = 0.5});
  // About 2,000 positive terms in double, each added at most once per term in either order.
  EXPECT_NEAR(report.grad_norm, norm, norm * 2000 * 0x1p-53);
  EXPECT_DOUBLE_EQ(report.clip_factor, 0.5 / (report.grad_norm + 1e-6));
  size_t i = 0;
  for (const auto& item : parameters) {
    EXPECT_TRUE(torch::equal(item.value().grad(), before[i]));
    const Tensor expected = before[i++].to(torch::kFloat64) * (0.1 * report.clip_factor);
    const Tensor error = (optimizer.state_dict().at(item.key() + ".exp_avg").to(torch::kFloat64) - expected).abs();
    EXPECT_TRUE((error <= 5 * kUnit * expected.abs()).all().item<bool>()) << "two coefficients, three operations";
  }
  set_gradients(parameters, 0);
  EXPECT_EQ(optimizer.update({.max_norm = 1e6}).clip_factor, 1);
}

TEST(AdamW, RemovesTheLossScaleInTheSamePass) {
  const NamedParameters plain = make_parameters(), scaled = make_parameters();
  AdamW of_plain(one_group(plain, options())), of_scaled(one_group(scaled, options()));
  for (int64_t step = 0; step < 3; ++step) {
    set_gradients(plain, step);
    set_gradients(scaled, step, 1024);
    const StepReport a = of_plain.update({.max_norm = 1}),
                     b = of_scaled.update({.max_norm = 1, .inv_loss_scale = 0x1p-10});
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  EXPECT_TRUE(same(plain, scaled));
}

TEST(AdamW, ALossScaleWithoutAReciprocalSkipsTheStep) {
  const NamedParameters parameters = make_parameters();
  AdamW optimizer(one_group(parameters, options()));
  set_gradients(parameters, 0);
  const Tensor before = parameters["fc.weight"].detach().clone();
  EXPECT_TRUE(optimizer.update({.inv_loss_scale = std::numeric_limits<double>::infinity()}).skipped);
  EXPECT_TRUE(torch::equal(parameters["fc.weight"], before));
}

TEST(AdamW, WritesAreVisibleToVersionCounters) {
  const NamedParameters parameters = make_parameters();
  AdamW optimizer(one_group(parameters, options()));
  set_gradients(parameters, 0);
  const auto before = parameters["fc.weight"]._version();
  optimizer.update();
  EXPECT_GT(parameters["fc.weight"]._version(), before);
}

TEST(AdamW, StepCallsTheClosureAndKeepsTheReport) {
  const NamedParameters parameters = make_parameters();
  AdamW optimizer(one_group(parameters, options()));
  const Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    Tensor value = parameters["fc.weight"].square().sum() / 2;
    value.backward();
    return value;
  });
  EXPECT_NEAR(optimizer.last_report().grad_norm, std::sqrt(2 * loss.item<double>()),
              1961 * kUnit * loss.item<double>());
}

struct Variant {
  torch::Dtype dtype;
  StateKind states;
  MasterKind masters = MasterKind::kFp32;
  AdamWSettings settings() const { return {.optimizer_state = states, .masters = masters, .seed = 5}; }
};
class AdamWState : public ::testing::TestWithParam<Variant> {};

TEST_P(AdamWState, SaveAndLoadContinueWithTheSameBits) {
  const AdamWSettings settings = GetParam().settings();
  const NamedParameters whole = make_parameters(GetParam().dtype);
  AdamW straight(one_group(whole, options()), settings);
  for (int64_t step = 0; step < 3; ++step) {
    set_gradients(whole, step);
    straight.update();
  }
  const auto state = copies(straight.state_dict());
  std::map<std::string, Tensor> weights;
  for (const auto& item : whole) weights[item.key()] = item.value().detach().clone();
  set_gradients(whole, 3);
  straight.update();

  for (bool optimizer_first : {true, false}) {
    const NamedParameters resumed = make_parameters(GetParam().dtype);
    AdamW again(one_group(resumed, options()), settings);
    if (optimizer_first) again.load_state_dict(state);
    for (const auto& item : resumed) item.value().detach().copy_(weights.at(item.key()));
    if (!optimizer_first) again.load_state_dict(state);
    set_gradients(resumed, 3);
    again.update();
    EXPECT_TRUE(same(whole, resumed));
    EXPECT_TRUE(same(straight.state_dict(), again.state_dict()));
  }
}

TEST_P(AdamWState, TorchArchivesHoldIt) {
  const AdamWSettings settings = GetParam().settings();
  const NamedParameters parameters = make_parameters(GetParam().dtype);
  AdamW optimizer(one_group(parameters, options()), settings), other(one_group(parameters, options()), settings);
  set_gradients(parameters, 0);
  optimizer.update();
  std::stringstream stream;
  torch::save(optimizer, stream);
  torch::load(other, stream);
  EXPECT_TRUE(same(optimizer.state_dict(), other.state_dict()));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, AdamWState,
    ::testing::Values(Variant{torch::kFloat32, StateKind::kFp32}, Variant{torch::kFloat32, StateKind::kBf16},
                      Variant{torch::kFloat32, StateKind::k8Bit}, Variant{torch::kBFloat16, StateKind::kFp32},
                      Variant{torch::kFloat16, StateKind::kBf16}, Variant{torch::kFloat16, StateKind::k8Bit},
                      Variant{torch::kBFloat16, StateKind::kFp32, MasterKind::kSplit},
                      Variant{torch::kBFloat16, StateKind::k8Bit, MasterKind::kSplit},
                      Variant{torch::kBFloat16, StateKind::kBf16, MasterKind::kNone},
                      Variant{torch::kBFloat16, StateKind::k8Bit, MasterKind::kNone}));

TEST(AdamW, WeightsWrittenByOthersReplaceTheMaster) {
  const NamedParameters parameters = make_parameters(torch::kBFloat16);
  AdamW optimizer(one_group(parameters, AdamWOptions(0.0).weight_decay(0)));
  parameters["fc.bias"].detach().fill_(3);
  set_gradients(parameters, 0);
  optimizer.update();
  EXPECT_TRUE(torch::equal(parameters["fc.bias"], torch::full({37}, 3, torch::kBFloat16)));
}

TEST(AdamW, StateThatDoesNotFitIsRefusedWhole) {
  const NamedParameters parameters = make_parameters();
  AdamW optimizer(one_group(parameters, options()));
  set_gradients(parameters, 0);
  optimizer.update();
  const auto before = copies(optimizer.state_dict());
  const auto fails = [&](auto change, const char* message) {
    auto state = copies(before);
    for (auto& [name, tensor] : state) tensor.zero_();
    change(state);
    EXPECT_THAT([&] { optimizer.load_state_dict(state); }, ThrowsMessage<c10::Error>(HasSubstr(message)));
    EXPECT_TRUE(same(optimizer.state_dict(), before));
  };
  fails([](auto& state) { state.erase("fc.bias.step"); }, "AdamW: expected fc.bias.step in the state, got none");
  fails([](auto& state) { state["extra"] = torch::zeros({1}); }, "got extra");
  fails([](auto& state) { state["fc.bias.exp_avg"] = torch::zeros({36}); },
        "fc.bias.exp_avg to be Float [37], got Float [36]");
  fails([](auto& state) { state["fc.bias.exp_avg"] = torch::zeros({37}, torch::kHalf); }, "got Half [37]");
  fails([](auto& state) { state["fc.bias.exp_avg"] = torch::zeros({37}, torch::kChar); },
        "fc.bias.exp_avg_scale in the state, got none");
  fails([](auto& state) { state["fc.bias.master"] = torch::zeros({37}); }, "got fc.bias.master");
}

TEST(AdamW, UpdatesThatCannotBeMeantAreRefused) {
  const auto error = [](const char* message) { return ThrowsMessage<c10::Error>(HasSubstr(message)); };
  Tensor weight = torch::ones({3}).requires_grad_();
  AdamW optimizer({{{{"w", weight}}, AdamWOptions()}});
  weight.mutable_grad() = torch::ones({3});
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  EXPECT_THAT([&] { optimizer.update({.max_norm = -1}); }, error("expected max_norm >= 0, got -1"));
  EXPECT_THAT([&] { optimizer.update({.max_norm = kNan}); }, error("expected max_norm >= 0, got nan"));
  EXPECT_THAT([&] { optimizer.update({.inv_loss_scale = 0}); }, error("expected inv_loss_scale > 0, got 0"));
  for (const double lr : {-1.0, kNan, kInf}) {
    EXPECT_THAT([&] { optimizer.set_lr(lr); }, error("expected a finite lr >= 0"));
  }
  EXPECT_TRUE(torch::equal(weight, torch::ones({3})));
}

TEST(AdamW, BadArgumentsAreRefused) {
  const auto construct = [](const Tensor& tensor, const AdamWOptions& o, AdamWSettings settings = {}) {
    return [=] { AdamW({{{{"w", tensor}}, o}}, settings); };
  };
  const auto error = [](const char* message) { return ThrowsMessage<c10::Error>(HasSubstr(message)); };
  const Tensor good = torch::zeros({2, 3});
  EXPECT_THAT(construct(good, AdamWOptions(-1.0)), error("expected a finite lr >= 0, got -1"));
  EXPECT_THAT(construct(good, AdamWOptions().betas({0.9, 1.0})), error("betas in [0, 1)"));
  EXPECT_THAT(construct(good, AdamWOptions().amsgrad(true)), error("amsgrad"));
  EXPECT_THAT(construct(good.to(torch::kHalf), AdamWOptions(), {.masters = MasterKind::kSplit}),
              error("expected w to be BFloat16 or Float with masters split, got CPUHalfType"));
  EXPECT_THAT(construct(good, AdamWOptions(), {.optimizer_state = StateKind::k8Bit, .places = {{.begin = 31}}}),
              error("the part of w to begin at a multiple of 32 elements with 8bit states, got 31"));
  EXPECT_THAT(construct(good.t(), AdamWOptions()), error("expected w to be a contiguous CPU tensor"));
  EXPECT_THAT(construct(good.to(torch::kFloat64), AdamWOptions()), error("AdamW"));
  EXPECT_THAT([&] { AdamW({{{{"w", good}, {"w", good}}, AdamWOptions()}}); }, error("got w twice"));
}

}  // namespace
}  // namespace plimsoll::optim
