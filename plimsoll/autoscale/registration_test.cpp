#include "plimsoll/autoscale/registration.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

at::Tensor triple(const at::Tensor& x) { return at::mul(x, 3); }

at::Tensor call_triple(const at::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("plimsoll_test::triple", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

TEST(Registration, AnOperatorOfAnotherLibraryGetsARule) {
  const auto session = std::make_shared<Session>(Settings{});
  const at::Tensor x = as_scaled(at::full({4}, 0x1p60), session);
  call_triple(x);
  EXPECT_EQ(session->counts().at("plimsoll_test::triple").fallback, 1);

  add_rule("plimsoll_test::triple", {.op = "", .kind = RuleClass::kDegreeOne, .growth = Growth::kFew});
  const at::Tensor y = call_triple(x);
  EXPECT_EQ(session->counts().at("plimsoll_test::triple").storage, 1);
  EXPECT_EQ(scaled_impl(y).scale().exponent, 60);
  EXPECT_EQ(value_of(y)[0].item<float>(), 3 * 0x1p60f);
}

TEST(Registration, ARuleIsChecked) {
  using enum Use;
  const Rule good = {.op = "", .kind = RuleClass::kDegreeOne};
  EXPECT_THROW(add_rule("triple", good), c10::Error);
  EXPECT_THROW(add_rule("plimsoll_test::none", good), c10::Error);
  const Rule wrong[] = {
      {.op = "", .kind = RuleClass::kDegreeOne, .operands = {kLinear, kLinear}},
      {.op = "", .kind = RuleClass::kDegreeOne, .numbers = {NumberUse::kFactor}},
      {.op = "", .kind = RuleClass::kDegreeOne, .results = {ResultScale::kFollows, ResultScale::kFollows}},
  };
  for (const Rule& rule : wrong) EXPECT_THROW(add_rule("plimsoll_test::triple", rule), c10::Error) << &rule - wrong;
}

TEST(Registration, ASessionIsOfFormatsThatThereAre) {
  EXPECT_THROW(Session({.storage = at::kDouble}), c10::Error);
  EXPECT_THROW(Session({.product_values = ProductFormat::kE4m3}), c10::Error);
  EXPECT_THROW(Session({.product_gradients = ProductFormat::kNvfp4}), c10::Error);
  EXPECT_THROW(Session({.policy = {.method = Method::kFixed, .exponent = kLargestExponent}}), c10::Error);
  EXPECT_NO_THROW(Session({.product_values = ProductFormat::kE4m3, .product_gradients = ProductFormat::kE5m2}));
  EXPECT_NO_THROW(Session({.product_values = ProductFormat::kMxfp4, .product_gradients = ProductFormat::kMxfp8}));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll_test, library) { library.def("triple(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(plimsoll_test, CPU, library) { library.impl("triple", &triple); }

}  // namespace plimsoll::autoscale
