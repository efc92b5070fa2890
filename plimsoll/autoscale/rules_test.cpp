// Each class of rules against the operator without scales, in double: values to the bound that the class promises
// (class_of()), and scales as the rule says.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "plimsoll/autoscale/parts.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

// Half the distance of two numbers next to 1, and of two below the smallest normal number.
constexpr double kHalfUnit = 0x1p-11, kHalfSmallest = 0x1p-25, kFloatUnit = 0x1p-24;

struct Exponents {
  int32_t a, b;
};
constexpr Exponents kExponents[] = {{0, 0}, {-40, 40}, {40, -40}, {-40, -40}, {0, 7}, {-13, 3}, {5, 5}, {31, -8}};

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<at::Tensor(const Tensors&)>;

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(at::kHalf);
}

std::shared_ptr<Session> new_session() { return std::make_shared<Session>(Settings{}); }

at::Tensor exact(const at::Tensor& data, int32_t exponent) { return data.to(at::kDouble) * std::exp2(exponent); }
at::Tensor value(const at::Tensor& x) { return value_of(x).to(at::kDouble); }
int32_t exponent_of(const at::Tensor& x) { return scaled_impl(x).scale().exponent; }
const at::Tensor& data_of_result(const at::Tensor& x) { return scaled_impl(x).data(); }

// One rounding of `expected` to FP16 at the result's exponent, after `floats` roundings to FP32.
at::Tensor one_rounding(const at::Tensor& expected, const at::Tensor& result, double floats) {
  return (kHalfUnit + (floats + 1) * kFloatUnit) * expected.abs() + kHalfSmallest * std::exp2(exponent_of(result));
}

void expect_within(const at::Tensor& result, const at::Tensor& expected, const at::Tensor& bound,
                   const std::string& what) {
  ASSERT_EQ(result.sizes(), expected.sizes()) << what;
  EXPECT_TRUE((value(result) - expected).abs().le(bound).all().item<bool>()) << what;
}

// The rms of the data of a result that was looked at: FP16 near 1.
void expect_measured(const at::Tensor& result, const std::string& what) {
  const double rms = data_of_result(result).to(at::kDouble).square().mean().sqrt().item<double>();
  EXPECT_LT(std::fabs(std::log2(rms)), 0.5 + 2 * kHalfUnit) << what;
}

struct Homogeneous {
  const char* name;
  Operator run;
  int32_t degree_a, degree_b;
  double floats;  // roundings to FP32
};

// The same data for any exponents, which are added, and the value to one rounding.
void expect_homogeneous(const Homogeneous& op, const at::Tensor& a, const at::Tensor& b) {
  const auto session = new_session();
  const at::Tensor reference = op.run({join({a}, session), join({b}, session)});
  for (const Exponents& e : kExponents) {
    const std::string what = c10::str(op.name, " at ", e.a, ", ", e.b);
    const at::Tensor result = op.run({join({a, e.a}, session), join({b, e.b}, session)});
    EXPECT_TRUE(at::equal(data_of_result(result), data_of_result(reference))) << what;
    EXPECT_EQ(exponent_of(result), exponent_of(reference) + op.degree_a * e.a + op.degree_b * e.b) << what;
    const at::Tensor expected = op.run({exact(a, e.a), exact(b, e.b)});
    expect_within(result, expected, one_rounding(expected, result, op.floats), what);
  }
  for (const auto& [name, counts] : session->counts()) EXPECT_EQ(counts.fallback, 0) << name;
}

TEST(Rules, AScaleFreeResultIsThatOfTheValues) {
  const at::Tensor a = normal({5, 8}, 1), b = normal({5, 8}, 2);
  const auto session = new_session();
  const Operator ops[] = {[](const Tensors& x) { return at::lt(x[0], x[1]); },
                          [](const Tensors& x) { return at::eq(x[0], x[0]); },
                          [](const Tensors& x) { return at::ge(x[0], 0.5); },
                          [](const Tensors& x) { return at::argmax(x[0]); },
                          [](const Tensors& x) { return at::isfinite(x[0]); },
                          [](const Tensors& x) { return at::nonzero(at::relu(x[0])); }};
  for (const Exponents& e : kExponents)
    for (const Operator& op : ops) {
      const at::Tensor result = op({join({a, e.a}, session), join({b, e.b}, session)});
      EXPECT_FALSE(is_scaled(result));
      EXPECT_TRUE(at::equal(result, op({exact(a, e.a), exact(b, e.b)}))) << e.a << " " << e.b << " " << &op - ops;
    }
}

TEST(Rules, ADegreeOneRuleThatMovesDataLeavesTheirBits) {
  const at::Tensor a = normal({5, 8}, 3), rows = at::tensor({3, 0}, at::kLong);
  const auto session = new_session();
  const Operator ops[] = {[](const Tensors& x) { return at::neg(x[0]); },
                          [](const Tensors& x) { return at::relu(x[0]); },
                          [](const Tensors& x) { return at::flip(x[0], {1}); },
                          [](const Tensors& x) { return at::amax(x[0], {1}); },
                          [](const Tensors& x) { return std::get<0>(at::sort(x[0])); },
                          [&](const Tensors& x) { return at::index_select(x[0], 0, rows); },
                          [&](const Tensors& x) { return at::embedding(x[0], rows); }};
  for (const Exponents& e : kExponents)
    for (const Operator& op : ops) {
      const at::Tensor result = op({join({a, e.a}, session)});
      EXPECT_EQ(exponent_of(result), e.a) << &op - ops;
      EXPECT_TRUE(at::equal(data_of_result(result), op({a}))) << e.a << " " << &op - ops;
    }
}

TEST(Rules, ADegreeOneRuleThatAddsIsOneRounding) {
  // Positive numbers: 8 of them are added with at most 7 roundings of their sum, and a mean divides once more.
  const at::Tensor a = normal({5, 8}, 4).abs();
  for (const Homogeneous& op : {Homogeneous{"sum", [](const Tensors& x) { return at::sum(x[0]); }, 1, 0, 39},
                                Homogeneous{"sum(0)", [](const Tensors& x) { return at::sum(x[0], {0}); }, 1, 0, 4},
                                Homogeneous{"sum(1)", [](const Tensors& x) { return at::sum(x[0], {1}); }, 1, 0, 7},
                                Homogeneous{"mean", [](const Tensors& x) { return at::mean(x[0], {1}); }, 1, 0, 8},
                                Homogeneous{"cumsum", [](const Tensors& x) { return at::cumsum(x[0], 1); }, 1, 0, 7}})
    expect_homogeneous(op, a, a);
}

TEST(Rules, ARuleOfADegreeAddsExponents) {
  const at::Tensor a = normal({5, 8}, 5), b = normal({5, 8}, 6);
  expect_homogeneous({"mul", [](const Tensors& x) { return at::mul(x[0], x[1]); }, 1, 1, 1}, a, b);
  expect_homogeneous({"div", [](const Tensors& x) { return at::div(x[0], x[1]); }, 1, -1, 1}, a, b);
  expect_homogeneous({"number", [](const Tensors& x) { return at::mul(x[0], 3.0e9); }, 1, 0, 2}, a, b);
  expect_homogeneous({"quotient", [](const Tensors& x) { return at::div(x[0], 7.0); }, 1, 0, 2}, a, b);
  expect_homogeneous({"reciprocal", [](const Tensors& x) { return at::reciprocal(x[0]); }, -1, 0, 1}, a, b);
  expect_homogeneous({"square", [](const Tensors& x) { return at::square(x[0]); }, 2, 0, 1}, a, b);
}

// The odd bit of a root goes into the data, so that exponents are halved.
TEST(Rules, ARootHalvesExponents) {
  const at::Tensor a = normal({5, 8}, 7).abs() + 0.25;
  const auto session = new_session();
  for (const int32_t exponent : {-40, -13, 0, 7, 31}) {
    const at::Tensor x = join({a, exponent}, session), root = at::sqrt(x), inverse = at::rsqrt(x);
    const at::Tensor expected = exact(a, exponent).sqrt();
    EXPECT_LE(std::abs(2 * exponent_of(root) - exponent), 1);
    EXPECT_LE(std::abs(2 * exponent_of(inverse) + exponent), 1);
    expect_within(root, expected, one_rounding(expected, root, 1), "sqrt");
    expect_within(inverse, 1 / expected, one_rounding(1 / expected, inverse, 2), "rsqrt");
  }
}

TEST(Rules, AnAdditiveRuleIsExactAtTheLargestExponent) {
  const at::Tensor a = normal({5, 8}, 8), b = normal({5, 8}, 9), mask = normal({5, 8}, 10) > 0;
  const auto session = new_session();
  const Operator ops[] = {[](const Tensors& x) { return at::maximum(x[0], x[1]); },
                          [](const Tensors& x) {
                            return at::cat({x[0], x[1]});
                          },
                          [](const Tensors& x) {
                            return at::stack({x[0], x[1]});
                          },
                          [&](const Tensors& x) { return at::where(mask, x[0], x[1]); },
                          [](const Tensors& x) { return at::clamp_min(x[0], x[1]); }};
  for (const Exponents& e : kExponents)
    for (const Operator& op : ops) {
      const at::Tensor result = op({join({a, e.a}, session), join({b, e.b}, session)});
      const at::Tensor expected = op({exact(a, e.a), exact(b, e.b)});
      const int32_t largest = std::max(e.a, e.b);
      EXPECT_EQ(exponent_of(result), largest) << &op - ops;
      // The operand that is shifted down loses what is below the smallest number.
      const double lost = e.a == e.b ? 0 : kHalfSmallest * std::exp2(largest);
      expect_within(result, expected, at::full_like(expected, lost), c10::str(&op - ops, " at ", e.a, ", ", e.b));
    }
}

TEST(Rules, AConstantHasToFitAndNoMore) {
  const at::Tensor a = normal({5, 8}, 11);
  const auto session = new_session();
  const at::Tensor x = join({a, -20}, session), padded = at::constant_pad_nd(x, {1, 2}, 0x1p-18);
  EXPECT_EQ(exponent_of(padded), -20);
  EXPECT_TRUE(at::equal(value(padded), at::constant_pad_nd(exact(a, -20), {1, 2}, 0x1p-18)));
  EXPECT_LE(at::clamp(x, c10::nullopt, 0x1p30).abs().max().item<double>(), 0x1p-15);
}

TEST(Rules, AnAccumulatorIsOneRoundingOfTheSum) {
  const at::Tensor a = normal({5, 8}, 12), b = normal({5, 8}, 13);
  const auto session = new_session();
  const Operator ops[] = {[](const Tensors& x) { return at::add(x[0], x[1]); },
                          [](const Tensors& x) { return at::sub(x[0], x[1], 0.75); },
                          [](const Tensors& x) { return at::addcmul(x[0], x[1], x[1], -1.5); },
                          [](const Tensors& x) { return at::addcdiv(x[0], x[1], x[0], 2); }};
  for (const Exponents& e : kExponents)
    for (const Operator& op : ops) {
      const at::Tensor result = op({join({a, e.a}, session), join({b, e.b}, session)});
      const at::Tensor left = exact(a, e.a), expected = op({left, exact(b, e.b)});
      // FP32 rounds the other term, at most four times, and the sum; self is shifted down and loses its lowest bits.
      const at::Tensor terms = left.abs() + (expected - left).abs();
      const at::Tensor bound =
          one_rounding(expected, result, 1) + 4 * kFloatUnit * terms + kHalfSmallest * std::exp2(exponent_of(result));
      expect_within(result, expected, bound, c10::str(&op - ops, " at ", e.a, ", ", e.b));
    }
}

TEST(Rules, AProductAddsExponentsAndKeepsDataNearOne) {
  constexpr int64_t kTerms = 64;
  const at::Tensor a = normal({3, kTerms}, 14), b = normal({kTerms, 5}, 15), c = normal({5}, 16);
  const auto session = new_session();
  const auto bound_of = [&](const at::Tensor& left, const at::Tensor& right, const at::Tensor& expected,
                            const at::Tensor& result, const at::Tensor& added) {
    return one_rounding(expected, result, 1) +
           (kTerms + 2) * kFloatUnit * (at::matmul(left.abs(), right.abs()) + added);
  };
  const at::Tensor reference = at::mm(join({a}, session), join({b}, session));
  for (const Exponents& e : kExponents) {
    const at::Tensor left = exact(a, e.a), right = exact(b, e.b), bias = exact(c, e.a + e.b);
    const at::Tensor x = join({a, e.a}, session), y = join({b, e.b}, session);
    const at::Tensor product = at::mm(x, y), batched = at::bmm(x.unsqueeze(0), y.unsqueeze(0)),
                     sum = at::addmm(join({c, e.a + e.b}, session), x, y);
    EXPECT_TRUE(at::equal(data_of_result(product), data_of_result(reference)));
    EXPECT_TRUE(at::equal(data_of_result(batched)[0], data_of_result(reference)));
    EXPECT_EQ(exponent_of(product), exponent_of(reference) + e.a + e.b);
    const at::Tensor expected = at::mm(left, right), with_bias = expected + bias;
    expect_within(product, expected, bound_of(left, right, expected, product, at::zeros({5})), "mm");
    expect_within(sum, with_bias, bound_of(left, right, with_bias, sum, bias.abs()), "addmm");
    const double rms = data_of_result(product).to(at::kDouble).square().mean().sqrt().item<double>();
    EXPECT_LT(std::fabs(std::log2(rms)), kSlack);
  }
}

TEST(Rules, ANormalisationIsTheSameUnderAnyExponentOfItsInput) {
  constexpr int64_t kLength = 16;
  const at::Tensor a = normal({6, kLength}, 17), w = normal({kLength}, 18), b = normal({kLength}, 19);
  const auto session = new_session();
  const at::Tensor weight = join({w, 3}, session), bias = join({b, 3}, session);
  const auto run = [&](const at::Tensor& x, const at::Tensor& gain, const at::Tensor& offset) {
    return at::layer_norm(x, {kLength}, gain, offset, 0);
  };
  const at::Tensor reference = run(join({a}, session), weight, bias);
  const at::Tensor row = exact(a, 0), normalised = run(row, {}, {}), gain = exact(w, 3), offset = exact(b, 3);
  const at::Tensor expected = run(row, gain, offset);
  // Mean and variance are sums of kLength terms; what they lose is relative to the row's largest element.
  const at::Tensor largest = normalised.abs().amax({1}, true);
  for (const int32_t exponent : {-30, -1, 0, 8, 30}) {
    const at::Tensor result = run(join({a, exponent}, session), weight, bias);
    EXPECT_TRUE(at::equal(data_of_result(result), data_of_result(reference))) << exponent;
    EXPECT_EQ(exponent_of(result), exponent_of(reference)) << exponent;
    const at::Tensor bound = one_rounding(expected, result, 2) + kFloatUnit * (2 * kLength + 4) * largest * gain.abs() +
                             kFloatUnit * offset.abs();
    expect_within(result, expected, bound, c10::str(exponent));
  }
  // The gain and the offset say the scale: no look is needed for data near 1.
  EXPECT_LE(std::abs(exponent_of(reference) - 3), 1);
  const at::AutoDispatchBelowAutograd below;  // above it torch composes rms_norm of other operators
  const at::Tensor rms = std::get<0>(at::_fused_rms_norm(join({a, 30}, session), {kLength}, weight, 0.0));
  const at::Tensor expected_rms = row / row.square().mean({1}, true).sqrt() * gain;
  EXPECT_LE(std::abs(exponent_of(rms) - 3), 1);
  expect_within(rms, expected_rms, one_rounding(expected_rms, rms, kLength + 4), "rms_norm");
}

TEST(Rules, ANonlinearRuleIsFp32OnTheValueAndOneRounding) {
  constexpr int64_t kLength = 16;
  const at::Tensor a = normal({6, kLength}, 20);
  const auto session = new_session();
  struct Function {
    const char* name;
    Operator run;
    double floats;  // errors of FP32, in units: of torch's functions 2, of the library's 2^-17 (docs/numerics.md)
    bool measured;
  };
  const Function functions[] = {
      {"exp", [](const Tensors& x) { return at::exp(x[0]); }, 2, false},
      {"log", [](const Tensors& x) { return at::log(at::abs(x[0])); }, 2, false},
      {"tanh", [](const Tensors& x) { return at::tanh(x[0]); }, 0x1p7, false},
      {"sigmoid", [](const Tensors& x) { return at::sigmoid(x[0]); }, 0x1p7, false},
      {"sin", [](const Tensors& x) { return at::sin(x[0]); }, 2, false},
      {"softmax", [](const Tensors& x) { return at::softmax(x[0], 1); }, 2 * kLength + 4, true},
      {"pow", [](const Tensors& x) { return at::pow(at::abs(x[0]), 1.5); }, 2, false},
  };
  for (const Function& function : functions)
    for (const int32_t exponent : {-8, -3, 0, 2}) {
      const std::string what = c10::str(function.name, " at ", exponent);
      const at::Tensor result = function.run({join({a, exponent}, session)});
      const at::Tensor expected = function.run({exact(a, exponent)});
      expect_within(result, expected, one_rounding(expected, result, function.floats), what);
      if (function.measured) expect_measured(result, what);
    }
}

TEST(Rules, AGradientIsLinearInTheGradientAndSeesTheValueOfTheRest) {
  const at::Tensor g = normal({5, 8}, 21), y = at::tanh(normal({5, 8}, 22).to(at::kFloat)).to(at::kHalf);
  const auto session = new_session();
  const at::Tensor result_of_tanh = join({y * 8, -3}, session);
  const at::Tensor reference = at::tanh_backward(join({g}, session), result_of_tanh);
  for (const int32_t exponent : {-40, -7, 0, 9, 40}) {
    const at::Tensor gradient = join({g, exponent}, session), exact_gradient = exact(g, exponent);
    const at::Tensor of_tanh = at::tanh_backward(gradient, result_of_tanh);
    EXPECT_TRUE(at::equal(data_of_result(of_tanh), data_of_result(reference)));
    EXPECT_EQ(exponent_of(of_tanh), exponent_of(reference) + exponent);
    const at::Tensor expected = at::tanh_backward(exact_gradient, exact(y, 0));
    // g (1 - y^2): what is lost of the difference is relative to 1, and the library's functions are good to 2^-17.
    expect_within(of_tanh, expected, one_rounding(expected, of_tanh, 2) + 0x1p-17 * exact_gradient.abs(), "tanh");
    const at::Tensor clipped = at::hardtanh_backward(gradient, result_of_tanh, -0.5, 0.5);
    EXPECT_TRUE(at::equal(value(clipped), at::hardtanh_backward(exact_gradient, exact(y, 0), -0.5, 0.5)));
  }
}

TEST(Rules, AnOptimizerMakesTheStepOfDouble) {
  constexpr double kLr = 0x1p-10, kBeta1 = 0.9, kBeta2 = 0.999, kDecay = 0.01, kEps = 1e-8;
  const at::Tensor w = normal({40, 9}, 23).to(at::kFloat), g = normal({40, 9}, 24);
  for (const int32_t exponent : {-30, 0, 12}) {
    const auto session = new_session();
    Tensors weights = {as_scaled(w, session).requires_grad_()}, gradients = {join({g, exponent}, session)};
    Tensors moments1 = {at::zeros({40, 9})}, moments2 = {at::zeros({40, 9})}, none, steps = {at::ones({})};
    const at::Tensor before = value(at::clone(weights.front()));
    at::_fused_adamw_(weights, gradients, moments1, moments2, none, steps, kLr, kBeta1, kBeta2, kDecay, kEps, false,
                      false);
    const at::Tensor exact_gradient = exact(g, exponent);
    // After one step both corrected moments are those of the gradient.
    const at::Tensor expected = before * (1 - kLr * kDecay) - kLr * exact_gradient / (exact_gradient.abs() + kEps);
    const double largest = expected.abs().max().item<double>();
    const at::Tensor after = value_to_write(scaled_impl(weights.front())).to(at::kDouble);
    // Data and remainder have 2^-22 of what they hold; the step's own roundings are relative to its size.
    const double bound = 0x1p-21 * largest + 8 * kFloatUnit * kLr;
    EXPECT_LT((after - expected).abs().max().item<double>(), bound) << exponent;
    EXPECT_EQ(session->counts().at("aten::_fused_adamw_").wide, 1);
    EXPECT_GT((after - before).abs().min().item<double>(), 0);
  }
}

TEST(Rules, AMoveTakesTheScaleAlong) {
  const at::Tensor a = normal({5, 8}, 25), b = normal({5, 8}, 26);
  const auto session = new_session();
  for (const Exponents& e : kExponents) {
    const at::Tensor x = join({a, e.a}, session), target = join({b, e.b}, session);
    const at::Tensor copy = at::clone(x), wide = at::_to_copy(x, at::TensorOptions(at::kDouble));
    EXPECT_TRUE(at::equal(data_of_result(copy), a));
    EXPECT_EQ(exponent_of(copy), e.a);
    EXPECT_EQ(wide.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(value(wide), exact(a, e.a)));
    target.copy_(x);
    EXPECT_TRUE(at::equal(value(target), exact(a, e.a)));
    at::Tensor plain = at::zeros({5, 8});
    plain.copy_(x);
    EXPECT_TRUE(at::equal(plain.to(at::kDouble), exact(a, e.a)));
    target.fill_(0x1p-3);
    EXPECT_TRUE(at::equal(value(target), at::full({5, 8}, 0x1p-3, at::kDouble)));
    target.zero_();
    EXPECT_TRUE(scaled_impl(target).scale().is_zero());
    EXPECT_TRUE(at::equal(value(at::ones_like(x)), at::ones({5, 8}, at::kDouble)));
  }
}

TEST(Rules, AViewIsOfTheSameMemoryAndScale) {
  const at::Tensor a = normal({4, 6}, 27);
  const auto session = new_session();
  const Operator ops[] = {[](const Tensors& x) {
                            return x[0].view({3, 8});
                          },
                          [](const Tensors& x) { return x[0].t(); },
                          [](const Tensors& x) {
                            return x[0].permute({1, 0});
                          },
                          [](const Tensors& x) { return x[0].detach(); },
                          [](const Tensors& x) { return x[0].slice(1, 1, 5, 2); },
                          [](const Tensors& x) {
                            return x[0].as_strided({2, 3}, {1, 2}, 3);
                          },
                          [](const Tensors& x) {
                            return x[0].view({1, 4, 6}).squeeze_(0);
                          },
                          [](const Tensors& x) { return x[0].detach().t_(); },
                          [](const Tensors& x) { return x[0].detach().unsqueeze_(1).transpose_(0, 2); }};
  for (const Operator& op : ops) {
    const at::Tensor x = join({a, 9}, session), view = op({x});
    EXPECT_TRUE(at::equal(data_of_result(view), op({a}))) << &op - ops;
    EXPECT_TRUE(data_of_result(view).is_alias_of(data_of_result(x))) << &op - ops;
    EXPECT_EQ(&scaled_impl(view).shared(), &scaled_impl(x).shared()) << &op - ops;
    view.fill_(0x1p30);  // the exponent of the whole memory rises
    EXPECT_TRUE(at::equal(value(view), at::full_like(value(view), 0x1p30))) << &op - ops;
  }
  EXPECT_THROW(join({a, 9}, session).view(at::kShort), c10::Error);
}

}  // namespace
}  // namespace plimsoll::autoscale
