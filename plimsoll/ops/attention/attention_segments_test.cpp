// Several texts in a row, of which each attends to itself alone.
#include "plimsoll/ops/attention/attention.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

// qkv is a leaf [batch, tokens, heads + 2 groups, channels].
struct PackedRun {
  at::Tensor output, gradient;
  PackedRun(const at::Tensor& qkv, const at::Tensor& grad, const PackedHeads& packed, const AttentionOptions& options) {
    const at::Tensor leaf = testing::leaf(qkv, qkv.scalar_type());
    output = attention_packed(leaf, packed, options);
    output.backward(grad);
    gradient = leaf.grad();
  }
};

TEST(OpsAttentionSegments, HaveTheBitsThatTheyHaveAlone) {
  at::manual_seed(9);
  const std::vector<int64_t> lengths = {17, 1, 5, 70};
  const PackedHeads packed = {.heads = 4, .groups = 2};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t window : {0, 6}) {
      for (const int64_t batch : {1, 2}) {
        const AttentionOptions alone = {.causal = Causal::kTopLeft, .window = window};
        AttentionOptions together = alone;
        together.segments = lengths;
        const at::Tensor qkv = at::randn({batch, 93, packed.heads + 2 * packed.groups, 16}).to(dtype);
        const at::Tensor grad = at::randn({batch, 93, packed.heads, 16}).to(dtype);
        const PackedRun all(qkv, grad, packed, together);
        int64_t begin = 0;
        for (const int64_t length : lengths) {
          const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, length); };
          const PackedRun one(part(qkv), part(grad), packed, alone);
          const std::string what = std::string(c10::toString(dtype)) + " from " + std::to_string(begin);
          testing::expect_equal(part(all.output).detach(), one.output.detach(), what + " output");
          testing::expect_equal(part(all.gradient), one.gradient, what + " gradient");
          begin += length;
        }
      }
    }
  }
}

TEST(OpsAttentionSegments, DoNotDropTheSameWeights) {
  at::manual_seed(10);
  const at::Tensor x = at::randn({1, 40, 3, 16});
  AttentionOptions options = {.dropout = 0.5, .segments = {40, 40}};
  const at::Tensor output = attention_packed(at::cat({x, x}, 1), {1, 1}, options);
  EXPECT_FALSE(at::equal(output.narrow(1, 0, 40), output.narrow(1, 40, 40)));
}

TEST(OpsAttentionSegments, AreTheTokensOrRefused) {
  const at::Tensor x = at::randn({1, 2, 8, 16});
  const auto expect_error = [&](const AttentionOptions& options, const at::Tensor& key) {
    try {
      attention(x, key, key, options);
      ADD_FAILURE() << "expected an error";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("attention: expected segments"), std::string::npos);
    }
  };
  for (const std::vector<int64_t>& lengths :
       std::initializer_list<std::vector<int64_t>>{{7}, {9}, {4, 0, 4}, {-1, 9}, {INT64_MAX, INT64_MAX}}) {
    expect_error({.segments = lengths}, x);
  }
  expect_error({.segments = {8}}, at::randn({1, 2, 9, 16}));
  expect_error({.mask = at::zeros({8, 8}, at::kBool), .segments = {8}}, x);
  expect_error({.bias = at::zeros({8, 8}), .segments = {8}}, x);
  expect_error({.key_lengths = at::tensor({8}, at::kLong), .segments = {8}}, x);
}

}  // namespace
}  // namespace plimsoll::ops
