// Codes as files have them, in a weight's place.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>

#include "plimsoll/ops/linear/decode_codes.h"
#include "plimsoll/ops/linear/fp4_codes.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/linear/packed_weights.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

constexpr CodeKind kStoredKinds[] = {CodeKind::kE4m3Rows, CodeKind::kE4m3Blocks, CodeKind::kNvfp4, CodeKind::kMxfp4};

// Codes that the library makes of a weight, as a file has them.
CodeSource stored(const at::Tensor& weight, CodeKind kind) {
  const std::vector<CodeSource> from = {{.weight = weight}};
  CodeSource result;
  if (kind == CodeKind::kE4m3Rows || kind == CodeKind::kE4m3Blocks) {
    const ScaledTensor codes = codes_of(from, kind == CodeKind::kE4m3Rows ? recipe::kPerRow : recipe::kBlock1x128);
    result.stored = {.codes = codes.data, .scale = codes.scale};
    return result;
  }
  const Fp4Codes codes =
      fp4_codes_of(from, kind == CodeKind::kNvfp4 ? format::Fp4Scaling::kNvfp4 : format::Fp4Scaling::kMxfp4);
  result.stored = {.codes = codes.codes, .scale = codes.scale};
  if (codes.tensor_scale.defined()) result.stored.tensor_scale = codes.tensor_scale.item<float>();
  return result;
}

LinearScaling holding_codes(const std::vector<CodeSource>& sources, HeldOptions options) {
  LinearScaling scaling;
  scaling.state = std::make_shared<LinearState>();
  scaling.state->weight_source.hold(std::make_shared<HeldWeight>(sources, options));
  return scaling;
}

// A parameter of no memory.
at::Tensor place_of(int64_t rows, int64_t cols, at::ScalarType dtype) {
  return at::empty({1}, dtype).expand({rows, cols});
}

TEST(StoredCodes, MultiplyWithTheBitsOfCodesThatAreMadeAtLoad) {
  at::manual_seed(3);
  const at::NoGradGuard no_grad;
  const at::Tensor weight = testing::sample({70, 288}, 0.3).to(at::kBFloat16);
  for (const CodeKind kind : kStoredKinds) {
    for (const int64_t rows : {1, 5, 90}) {
      const at::Tensor x = at::randn({rows, 288}).to(at::kBFloat16);
      const at::Tensor place = place_of(70, 288, at::kBFloat16);
      const at::Tensor made = linear(x, place, {}, holding_codes({{.weight = weight}}, {.kind = kind}));
      testing::expect_equal(linear(x, place, {}, holding_codes({stored(weight, kind)}, {.kind = kind})), made,
                            "stored");
    }
  }
}

// Each row of a joined matrix keeps the scale of the tensor that it comes from.
TEST(StoredCodes, JoinedByRowsAreTheTensorsOneByOne) {
  at::manual_seed(4);
  const at::NoGradGuard no_grad;
  for (const CodeKind kind : kStoredKinds) {
    const std::vector<CodeSource> sources = {stored(testing::sample({33, 288}, 0.1), kind),
                                             stored(testing::sample({40, 288}, 7.0), kind)};
    for (const int64_t rows : {1, 90}) {
      const at::Tensor x = at::randn({rows, 288}).to(at::kBFloat16);
      std::vector<at::Tensor> parts;
      for (const CodeSource& source : sources) {
        parts.push_back(
            linear(x, place_of(source.rows(), 288, at::kBFloat16), {}, holding_codes({source}, {.kind = kind})));
      }
      const at::Tensor joined = linear(x, place_of(73, 288, at::kBFloat16), {}, holding_codes(sources, {.kind = kind}));
      testing::expect_equal(joined, at::cat(parts, 1), "joined");
    }
  }
}

TEST(StoredCodes, GradientsAreThoseOfTheValues) {
  at::manual_seed(5);
  for (const CodeKind kind : kStoredKinds) {
    const std::vector<CodeSource> sources = {stored(testing::sample({24, 160}, 0.1), kind),
                                             stored(testing::sample({40, 160}, 1.0), kind)};
    const at::Tensor values = decode_codes(sources, kind, at::kFloat).to(at::kDouble);
    at::Tensor x = at::randn({9, 160}).requires_grad_();
    const at::Tensor output =
        linear(x, place_of(64, 160, at::kFloat), {}, holding_codes(sources, {.has_gradient = true, .kind = kind}));
    const at::Tensor grad = at::randn({9, 64});
    output.backward(grad);
    const auto expect_near = [](const at::Tensor& got, const at::Tensor& a, const at::Tensor& b) {
      // Sums of at most 160 terms, whose scales round once more each than those of the values.
      const at::Tensor bound = at::matmul(a.abs(), b.abs()).mul((160 + 8) * 0x1p-24);
      EXPECT_TRUE((got.to(at::kDouble) - at::matmul(a, b)).abs().le(bound).all().item<bool>());
    };
    expect_near(output.detach(), x.detach().to(at::kDouble), values.t());
    expect_near(x.grad(), grad.to(at::kDouble), values);
  }
}

TEST(StoredCodes, DecodeToCodesTimesScales) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = testing::sample({20, 160}, 0.5);
  for (const CodeKind kind : kStoredKinds) {
    const CodeSource source = stored(weight, kind);
    const at::Tensor wide = decode_codes({source}, kind, at::kFloat);
    const at::Tensor narrow = decode_codes({source}, kind, at::kBFloat16);
    testing::expect_equal(narrow, wide.to(at::kBFloat16), "narrow");
    // E2M1 has one bit of mantissa, under the amax of 32 elements at most: half the gap of 4 to 6.
    const double unit = kind == CodeKind::kE4m3Rows || kind == CodeKind::kE4m3Blocks ? 0x1p-4 : 1.0 / 5;
    EXPECT_LE((wide - weight).abs().max().item<double>(), unit * weight.abs().max().item<double>());
  }
}

}  // namespace
}  // namespace plimsoll::ops
