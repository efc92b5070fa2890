#include "plimsoll/ops/attention/attention.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "plimsoll/ops/attention/attention_composed.h"
#include "plimsoll/ops/attention/attention_pass.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBatch = 2, kHeads = 4;

struct Case {
  at::ScalarType dtype = at::kFloat;
  int64_t groups = kHeads, queries = 21, keys = 30, channels = 16;
  Causal causal = Causal::kNone;
  at::Tensor key_lengths = {}, mask = {};
  std::vector<int64_t> bias_sizes = {};
  int64_t window = 0;

  AttentionOptions options(const at::Tensor& bias) const {
    return {.causal = causal, .key_lengths = key_lengths, .mask = mask, .bias = bias, .window = window};
  }
};

// query, key, value and perhaps bias: leaves whose values the dtype holds.
Tensors leaves(const Case& c) {
  Tensors inputs = {testing::leaf(at::randn({kBatch, kHeads, c.queries, c.channels}), c.dtype),
                    testing::leaf(at::randn({kBatch, c.groups, c.keys, c.channels}), c.dtype),
                    testing::leaf(at::randn({kBatch, c.groups, c.keys, c.channels}), c.dtype)};
  if (!c.bias_sizes.empty()) inputs.push_back(testing::leaf(at::randn(c.bias_sizes)));
  return inputs;
}

Tensors in_double(const Tensors& inputs) {
  Tensors result;
  for (const at::Tensor& x : inputs) result.push_back(testing::leaf(x, at::kDouble));
  return result;
}

// A value for each query and key, of one for each distance.
at::Tensor by_query_and_key(const at::Tensor& x, int64_t queries, int64_t keys) {
  const at::Tensor distance = at::arange(keys) - at::arange(queries).unsqueeze(1) + queries - 1;
  return x.index_select(-1, distance.flatten()).squeeze(-2).unflatten(-1, {queries, keys});
}

at::Tensor composition(const Case& c, const Tensors& x) {
  const int64_t repeats = kHeads / c.groups;
  const at::Tensor k = x[1].repeat_interleave(repeats, 1), v = x[2].repeat_interleave(repeats, 1);
  at::Tensor scores = at::matmul(x[0], k.transpose(2, 3)) / std::sqrt(static_cast<double>(c.channels));
  if (x.size() > 3) scores = scores + x[3];
  at::Tensor masked = at::zeros({c.queries, c.keys}, at::kBool);
  if (c.causal != Causal::kNone) {
    const int64_t diagonal = c.causal == Causal::kTopLeft ? 0 : c.keys - c.queries;
    masked = at::ones({c.queries, c.keys}, at::kBool).tril(diagonal).logical_not();
    at::Tensor end = (at::arange(c.queries).unsqueeze(1) + diagonal + 1).clamp_max(c.keys);
    if (c.key_lengths.defined()) end = end.min(c.key_lengths.view({kBatch, 1, 1, 1}));
    if (c.window > 0) masked = masked | (at::arange(c.keys) < end - c.window);
  }
  if (c.mask.defined()) masked = masked | c.mask;
  if (c.key_lengths.defined()) masked = masked | (at::arange(c.keys) >= c.key_lengths.view({kBatch, 1, 1, 1}));
  const at::Tensor weights = scores.masked_fill(masked, -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::matmul(at::nan_to_num(weights), v);
}

// Kernels hold their bounds in their own tests; here what could go wrong is of the order of the values. Sums of these
// lengths stay under 256 roundings of the largest, in FP32 or of the output to 16 bits.
void expect_close(const at::Tensor& got, const at::Tensor& exact, at::ScalarType dtype, const std::string& what) {
  const double unit = dtype == at::kFloat ? 256 * 0x1p-24 : 4 * (dtype == at::kHalf ? 0x1p-11 : 0x1p-8);
  const double largest = std::max(exact.abs().max().item<double>(), 1.0);
  testing::expect_within(got, exact, at::full_like(exact, unit * largest), what);
}

using Attention = at::Tensor (*)(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                 const AttentionOptions& options);

void expect_composition_of(Attention attend_by, const Case& c) {
  const Tensors inputs = leaves(c), exact_inputs = in_double(inputs);
  const at::Tensor got =
      attend_by(inputs[0], inputs[1], inputs[2], c.options(inputs.size() > 3 ? inputs[3] : at::Tensor()));
  const at::Tensor exact = composition(c, exact_inputs), grad = at::randn(exact.sizes()).to(c.dtype);
  EXPECT_EQ(got.scalar_type(), c.dtype);
  got.backward(grad);
  exact.backward(grad.to(at::kDouble));
  expect_close(got.detach(), exact.detach(), c.dtype, "output");
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(inputs[i].grad().scalar_type(), inputs[i].scalar_type());
    expect_close(inputs[i].grad(), at::nan_to_num(exact_inputs[i].grad()), c.dtype, "gradient " + std::to_string(i));
  }
}

// By our kernel, and by torch's under the same rules.
void expect_composition(const Case& c) {
  expect_composition_of(&attention, c);
  expect_composition_of(&torch_attention, c);
}

TEST(OpsAttention, MatchesTheCompositionInDouble) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t queries : {1, 5, 21}) {
      for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
        expect_composition({.dtype = dtype, .queries = queries, .causal = causal});
        expect_composition({.dtype = dtype, .groups = 2, .queries = queries, .causal = causal});
      }
    }
  }
}

TEST(OpsAttention, TakesMasksLengthsAndBias) {
  at::manual_seed(2);
  const at::Tensor random = at::rand({kBatch, 1, 21, 30}) > 0.7;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    expect_composition({.dtype = dtype, .mask = random});
    expect_composition({.dtype = dtype, .causal = Causal::kBottomRight, .mask = at::rand({30}) > 0.5});
    expect_composition({.dtype = dtype, .key_lengths = at::tensor({7, 30}, at::kLong)});
    expect_composition({.dtype = dtype, .key_lengths = at::tensor({0, 12}, at::kInt)});
    const std::vector<int64_t> extents[] = {{1, kHeads, 21, 30}, {kBatch, 1, 1, 30}, {kBatch, kHeads, 21, 1}, {21, 30}};
    for (const std::vector<int64_t>& sizes : extents) {
      expect_composition({.dtype = dtype, .causal = Causal::kBottomRight, .bias_sizes = sizes});
    }
  }
}

TEST(OpsAttention, TakesWindows) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
      for (const int64_t queries : {1, 5, 21, 40}) {
        Case c = {.dtype = dtype, .groups = 2, .queries = queries, .causal = causal, .window = 4};
        expect_composition(c);
        c.key_lengths = at::tensor({7, 30}, at::kLong);
        expect_composition(c);
      }
    }
  }
  const Case c = {.causal = Causal::kTopLeft};
  const Tensors x = leaves(c);
  const auto run = [&](int64_t window) {
    return attention(x[0], x[1], x[2], {.causal = Causal::kTopLeft, .window = window});
  };
  EXPECT_TRUE(at::equal(run(std::numeric_limits<int64_t>::max()), run(0)));
  EXPECT_THROW(run(-1), c10::Error);
  EXPECT_THROW(attention(x[0], x[1], x[2], {.window = 1}), c10::Error);
}

TEST(OpsAttention, PackedHeadsTakeWindows) {
  at::manual_seed(4);
  const AttentionOptions options = {.causal = Causal::kBottomRight, .window = 5};
  const at::Tensor qkv = testing::leaf(at::randn({kBatch, 21, kHeads + 4, 16})), other = testing::leaf(qkv);
  const at::Tensor got = attention_packed(qkv, {kHeads, 2}, options);
  const AttentionOperands parts = unpack_heads(other, {kHeads, 2});
  const at::Tensor expected = attention(parts.query, parts.key, parts.value, options).transpose(1, 2);
  EXPECT_TRUE(at::equal(got, expected));
  const at::Tensor grad = at::randn(got.sizes());
  got.backward(grad);
  expected.backward(grad);
  EXPECT_TRUE(at::equal(qkv.grad(), other.grad()));
}

TEST(OpsAttention, TakesAValueForEachDistance) {
  at::manual_seed(9);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t queries : {2, 5, 90}) {
      for (const int64_t keys : {7, 130}) {
        Case by_distance = {.dtype = dtype, .queries = queries, .keys = keys};
        by_distance.bias_sizes = {1, kHeads, 1, queries + keys - 1};
        by_distance.mask = at::rand({1, queries + keys - 1}) > 0.8;
        const Tensors inputs = leaves(by_distance);
        Case expected = by_distance;
        expected.mask = by_query_and_key(by_distance.mask, queries, keys);
        Tensors exact_inputs = in_double(inputs), matrices = exact_inputs;
        matrices[3] = by_query_and_key(exact_inputs[3], queries, keys);
        const at::Tensor got = attention(inputs[0], inputs[1], inputs[2], by_distance.options(inputs[3]));
        const at::Tensor exact = composition(expected, matrices), grad = at::randn(exact.sizes()).to(dtype);
        got.backward(grad);
        exact.backward(grad.to(at::kDouble));
        expect_close(got.detach(), exact.detach(), dtype, "output");
        for (size_t i = 0; i < inputs.size(); ++i) {
          expect_close(inputs[i].grad(), exact_inputs[i].grad(), dtype, "gradient " + std::to_string(i));
        }
      }
    }
  }
}

TEST(OpsAttention, IsComposedOfTorchsOperatorsWithAValueForEachDistance) {
  at::manual_seed(10);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, kHeads, 1, 11}, {11}}) {
    const at::Tensor query = at::randn({kBatch, kHeads, 5, 8}), key = at::randn({kBatch, kHeads, 7, 8});
    const AttentionOptions options = {.bias = at::randn(sizes)};
    ASSERT_TRUE(composes_attention(query, key, options));
    const at::Tensor composed = composed_attention(query, key, key, options);
    expect_close(composed, attention(query, key, key, options).to(at::kDouble), at::kFloat, "composed");
  }
}

TEST(OpsAttention, IsComposedOfTorchsOperatorsUnderTheCausalRuleThatTorchHas) {
  at::manual_seed(11);
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{5, 7}, {7, 5}, {6, 6}}) {
    const at::Tensor query = at::randn({kBatch, kHeads, queries, 8}), key = at::randn({kBatch, kHeads, keys, 8});
    for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
      const AttentionOptions options = {.causal = causal};
      const bool composes = composes_attention(query, key, options);
      EXPECT_EQ(composes, causal == Causal::kTopLeft || queries == keys);
      if (!composes) continue;
      const at::Tensor composed = composed_attention(query, key, key, options);
      expect_close(composed, attention(query, key, key, options).to(at::kDouble), at::kFloat, "composed");
    }
  }
}

TEST(OpsAttention, ReadsViewsAndLaysTheOutputOutLikeTheQuery) {
  at::manual_seed(3);
  const at::Tensor query = at::randn({kBatch, 9, kHeads, 8}), key = at::randn({kBatch, 9, kHeads, 8});
  const at::Tensor expected = attention(query.transpose(1, 2).contiguous(), key.transpose(1, 2).contiguous(),
                                        key.transpose(1, 2).contiguous(), {.causal = Causal::kBottomRight});
  EXPECT_TRUE(expected.is_contiguous());
  const at::Tensor got =
      attention(query.transpose(1, 2), key.transpose(1, 2), key.transpose(1, 2), {.causal = Causal::kBottomRight});
  EXPECT_TRUE(at::equal(got, expected));
  EXPECT_TRUE(got.transpose(1, 2).is_contiguous());
  const at::Tensor every_other = at::randn({kBatch, kHeads, 9, 16}).slice(3, 0, 16, 2);
  EXPECT_TRUE(at::equal(attention(every_other, every_other, every_other, {}),
                        attention(every_other.contiguous(), every_other.contiguous(), every_other.contiguous(), {})));
}

TEST(OpsAttention, PackedIsAttentionOfTheParts) {
  at::manual_seed(4);
  for (const bool interleaved : {false, true}) {
    for (const bool sequence_first : {false, true}) {
      const int64_t groups = interleaved ? kHeads : 2, parts = kHeads + 2 * groups;
      const at::Tensor values = at::randn({kBatch, 13, parts, 8}), grad = at::randn({kBatch, 13, kHeads, 8});
      const at::Tensor packed = testing::leaf(values), split = testing::leaf(values);
      const at::Tensor memory = packed.transpose(0, 1).contiguous();
      const at::Tensor qkv = sequence_first ? memory.transpose(0, 1) : packed;
      const at::Tensor got = attention_packed(qkv, {kHeads, groups, interleaved}, {.causal = Causal::kBottomRight});
      EXPECT_TRUE((sequence_first ? got.transpose(0, 1) : got).is_contiguous());
      const at::Tensor by_head = split.view({kBatch, 13, kHeads, -1, 8});
      const auto part = [&](int64_t index, int64_t begin, int64_t count) {
        return (interleaved ? by_head.select(3, index) : split.narrow(2, begin, count)).transpose(1, 2);
      };
      const at::Tensor expected =
          interleaved ? attention(part(0, 0, 0), part(1, 0, 0), part(2, 0, 0), {.causal = Causal::kBottomRight})
                      : attention(part(0, 0, kHeads), part(1, kHeads, groups), part(2, kHeads + groups, groups),
                                  {.causal = Causal::kBottomRight});
      EXPECT_TRUE(at::equal(got, expected.transpose(1, 2)));
      got.backward(grad);
      expected.backward(grad.transpose(1, 2));
      EXPECT_TRUE(at::equal(packed.grad(), split.grad()));
    }
  }
}

// A cache [batch, groups, keys, channels] as codes, and the values that the codes stand for.
struct Cache {
  AttentionCodes codes;
  at::Tensor values;
};
Cache cache_of(const at::Tensor& x, bool one_scale) {
  QuantizeOptions options = {.granularity = recipe::kPerRow};
  if (one_scale) options = {.scale = ScaleRef::of(0.03125f)};
  const ScaledTensor rows = quantize(x.flatten(0, 2), options).tensor;
  const at::Tensor scale = one_scale ? rows.scale.flatten() : rows.scale.view(x.sizes().slice(0, 3));
  return {{rows.data.view(x.sizes()), scale}, dequantize(rows, at::kFloat).view(x.sizes())};
}

TEST(OpsAttention, ReadsCachesOfCodes) {
  at::manual_seed(7);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t groups : {kHeads, int64_t{2}}) {
      for (const int64_t queries : {1, 5, 21}) {
        for (const bool one_scale : {false, true}) {
          const Case c = {.dtype = dtype, .groups = groups, .queries = queries, .causal = Causal::kBottomRight};
          const Tensors inputs = leaves(c);
          const Cache key = cache_of(inputs[1].detach(), one_scale), value = cache_of(inputs[2].detach(), one_scale);
          const at::Tensor query = inputs[0].detach();
          const at::Tensor got = attention_over_codes(query, key.codes, value.codes, {.causal = Causal::kBottomRight});
          EXPECT_EQ(got.scalar_type(), dtype);
          const Tensors exact = {query.to(at::kDouble), key.values.to(at::kDouble), value.values.to(at::kDouble)};
          expect_close(got, composition(c, exact), dtype, "codes, " + std::to_string(queries) + " queries");
          Case windowed = c;
          windowed.window = 4;
          expect_close(attention_over_codes(query, key.codes, value.codes, windowed.options({})),
                       composition(windowed, exact), dtype, "a window, " + std::to_string(queries) + " queries");
        }
      }
    }
  }
}

TEST(OpsAttention, RefusesCodesThatDoNotFit) {
  const at::Tensor q = at::zeros({1, 2, 3, 8}), x = at::zeros({1, 2, 5, 8}, at::kByte), scale = at::ones({1, 2, 5});
  EXPECT_NO_THROW(attention_over_codes(q, {x, scale}, {x, scale}, {}));
  EXPECT_THROW(attention_over_codes(q, {q, scale}, {x, scale}, {}), c10::Error);
  EXPECT_THROW(attention_over_codes(q, {x, at::ones({3})}, {x, scale}, {}), c10::Error);
  EXPECT_THROW(attention_over_codes(q, {x, scale}, {x, scale.to(at::kDouble)}, {}), c10::Error);
  EXPECT_THROW(attention_over_codes(q, {x, scale}, {x, scale}, {.dropout = 0.5}), c10::Error);
}

TEST(OpsAttention, DropoutFollowsTorchsSeed) {
  const at::Tensor x = at::randn({kBatch, kHeads, 21, 8});
  const auto run = [&](uint64_t seed) {
    at::manual_seed(seed);
    const at::Tensor input = testing::leaf(x);
    const at::Tensor output = attention(input, input, input, {.dropout = 0.4});
    output.sum().backward();
    return Tensors{output.detach(), input.grad()};
  };
  const Tensors first = run(1), again = run(1), other = run(2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(first[i], again[i]));
    EXPECT_FALSE(at::equal(first[i], other[i]));
  }
  // The mean over many draws is the attention without dropout: 100 of them bring the deviation of a weight down to
  // sqrt(0.4 / 0.6) / 10 = 0.082 of itself, and six of those are not seen.
  at::Tensor mean = at::zeros_like(x);
  for (int draw = 0; draw < 100; ++draw) mean += attention(x, x, x, {.dropout = 0.4}) / 100;
  const at::Tensor exact = attention(x, x, x, {}), magnitude = attention(x, x, x.abs(), {});
  EXPECT_TRUE(((mean - exact).abs() <= 6 * 0.082 * magnitude).all().item<bool>());
}

TEST(OpsAttention, BitsDoNotDependOnThreads) {
  const auto run = [](int threads) {
    const testing::ScopedThreads scope(threads);
    at::manual_seed(5);
    Tensors inputs = leaves({.dtype = at::kBFloat16, .queries = 65, .keys = 65});
    const at::Tensor output =
        attention(inputs[0], inputs[1], inputs[2], {.causal = Causal::kBottomRight, .dropout = 0.1});
    output.sum().backward();
    return Tensors{output.detach(), inputs[0].grad(), inputs[1].grad(), inputs[2].grad()};
  };
  const Tensors one = run(1);
  for (const int threads : {2, 3}) {
    const Tensors many = run(threads);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], many[i])) << i;
  }
}

TEST(OpsAttention, MetaKernelsAgreeWithTheCpu) {
  const auto call = [](const char* name, std::vector<c10::IValue> stack, bool meta) {
    for (c10::IValue& value : stack) {
      if (meta && value.isTensor()) value = value.toTensor().to(at::kMeta);
    }
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
    return stack;
  };
  const auto expect_agreement = [&](const char* name, const std::vector<c10::IValue>& arguments) {
    const auto real = call(name, arguments, false), meta = call(name, arguments, true);
    ASSERT_EQ(real.size(), meta.size());
    for (size_t i = 0; i < real.size(); ++i) {
      EXPECT_EQ(meta[i].toTensor().sizes(), real[i].toTensor().sizes()) << name << " result " << i;
      EXPECT_EQ(meta[i].toTensor().strides(), real[i].toTensor().strides()) << name << " result " << i;
      EXPECT_EQ(meta[i].toTensor().scalar_type(), real[i].toTensor().scalar_type()) << name << " result " << i;
    }
  };
  const c10::IValue none;
  const std::vector<int64_t> whole = {}, parts = {2, 3};
  const at::Tensor q = at::randn({kBatch, 5, kHeads, 8}).transpose(1, 2), k = at::randn({kBatch, kHeads, 7, 8});
  const at::Tensor qkv = at::randn({kBatch, 5, 3 * kHeads, 8}), out = at::zeros({kBatch, kHeads, 5, 8});
  const at::Tensor lse = at::zeros({kBatch, kHeads, 5}), bias = at::randn({1, kHeads, 5, 7});
  expect_agreement("plimsoll::attention_forward", {q, k, k, none, none, bias, 0.5, "causal", 0.0, 0, 2, whole});
  expect_agreement("plimsoll::attention_backward",
                   {q, q, k, k, out, lse, none, none, bias, 0.5, "causal", 0.0, 0, true, 2, whole});
  expect_agreement("plimsoll::attention_backward",
                   {q, q, k, k, out, lse, none, none, none, 0.5, "no_mask", 0.0, 0, false, 0, whole});
  expect_agreement("plimsoll::attention_packed_backward", {out, qkv, kHeads, kHeads, true, out, lse, none, none, none,
                                                           0.5, "causal", 0.0, 0, false, 2, parts});
  const at::Tensor codes = k.to(at::kByte), ones = at::ones({1});
  expect_agreement("plimsoll::attention_codes_forward",
                   {q, codes, codes, ones, ones, none, none, none, 0.5, "causal", 2});
  expect_agreement("plimsoll::attention", {q, k, k, none, none, bias, 0.0, "no_mask", 0.0, 0});
  expect_agreement("plimsoll::attention_packed", {qkv, kHeads, kHeads, false, none, none, none, 0.0, "causal", 0.0, 2});
}

TEST(OpsAttention, RefusesWhatItDoesNotCompute) {
  const at::Tensor x = at::zeros({1, 2, 3, 8});
  EXPECT_THROW(attention(x.to(at::kBFloat16), x, x, {}), c10::Error);
  EXPECT_THROW(attention(x.to(at::kDouble), x.to(at::kDouble), x.to(at::kDouble), {}), c10::Error);
  EXPECT_THROW(attention(x, x.select(0, 0), x, {}), c10::Error);
  EXPECT_THROW(attention(at::zeros({1, 3, 3, 8}), x, x, {}), c10::Error);
  EXPECT_THROW(attention(x, x, x, {.mask = at::zeros({3, 4}, at::kBool)}), c10::Error);
  EXPECT_THROW(attention(x, x, x, {.mask = at::zeros({3, 3})}), c10::Error);
  EXPECT_THROW(attention(x, x, x, {.key_lengths = at::tensor({1, 2}, at::kLong)}), c10::Error);
  EXPECT_THROW(attention(x, x, x, {.dropout = 1.0}), c10::Error);
  EXPECT_THROW(attention_packed(at::zeros({1, 3, 5, 8}), {2, 2}, {}), c10::Error);
  EXPECT_THROW(attention_packed(at::zeros({1, 3, 6, 8}), {4, 1, true}, {}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
