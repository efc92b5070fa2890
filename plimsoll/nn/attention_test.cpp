#include "plimsoll/nn/attention.h"

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/key_value_cache.h"
#include "plimsoll/nn/testing.h"

namespace plimsoll::nn {
namespace {

using testing::Tensors;

constexpr int64_t kBatch = 2, kHeads = 4, kChannels = 8;

DotProductAttention attention(DotProductAttentionOptions options) {
  options.qkv_format = Layout::kBshd;
  return DotProductAttention(kHeads, kChannels, options);
}

// Query, key, value [batch, seq, heads, channels]; `masked` bool, true = masked. A row that is masked whole gives 0.
at::Tensor plain_attention(const Tensors& t, const at::Tensor& masked) {
  const at::Tensor q = t[0].transpose(1, 2), k = t[1].transpose(1, 2), v = t[2].transpose(1, 2);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(kChannels));
  const at::Tensor weights =
      scores.masked_fill(masked, -std::numeric_limits<double>::infinity()).softmax(-1).masked_fill(masked, 0);
  return at::matmul(weights, v).transpose(1, 2).flatten(2);
}

at::Tensor causal(int64_t queries, int64_t keys) {
  return torch::ones({queries, keys}, at::kBool).tril(keys - queries).logical_not();
}

// Bounds of what rows with one visible key add to the errors of the output and of the gradients. Torch's weight of that
// key is exactly 1, and its gradient of that score exactly 0. Our backward pass computes the weight again from the lse
// (docs/numerics.md, attention): between the two are two scores, each within gamma(channels + 8) of scale sum|q k|, and
// two exponentials of 12 roundings. The gradient of the score is the difference of two sums over the channels.
std::vector<double> errors_of_one_key(const Tensors& t, const at::Tensor& masked, const at::Tensor& seed) {
  const auto heads = [](const at::Tensor& x) { return x.detach().to(at::kDouble).abs().transpose(1, 2); };
  const at::Tensor q = heads(t[0]), k = heads(t[1]), v = heads(t[2]), grad = heads(seed.unflatten(2, {kHeads, -1}));
  const double scale = 1 / std::sqrt(static_cast<double>(kChannels));
  const at::Tensor seen = masked.logical_not(), alone = seen * (seen.sum(-1, true) == 1);
  const at::Tensor scores = scale * at::matmul(q, k.transpose(2, 3));
  const at::Tensor weights = alone * 0x1p-24 * (2 * (kChannels + 8) * (scores + 1) + 2 * 12);
  const at::Tensor grad_scores = 2 * weights * at::matmul(grad, v.transpose(2, 3));
  return {0, testing::largest(scale * at::matmul(grad_scores, k)),
          testing::largest(scale * at::matmul(grad_scores.transpose(2, 3), q)),
          testing::largest(at::matmul(weights.transpose(2, 3), grad))};
}

void expect_attention(DotProductAttention& layer, const Tensors& inputs, const at::Tensor& mask,
                      const at::Tensor& masked) {
  const at::Tensor seed = torch::randn({kBatch, inputs[0].size(1), kHeads * kChannels});
  const auto ours = [&](const Tensors& t) { return layer->forward(t[0], t[1], t[2], mask); };
  const auto plain = [&](const Tensors& t) { return plain_attention(t, masked); };
  const Tensors got = testing::run_composition(ours, testing::leaves(inputs, at::kFloat), seed);
  const Tensors torchs = testing::run_composition(plain, testing::leaves(inputs, at::kFloat), seed);
  const Tensors exact = testing::run_composition(plain, testing::leaves(inputs, at::kDouble), seed);
  const std::vector<double> others = errors_of_one_key(inputs, masked, seed);
  for (size_t i = 0; i < got.size(); ++i) {
    testing::expect_as_accurate(got[i], torchs[i], exact[i], i == 0 ? "output" : "gradient " + std::to_string(i - 1),
                                others[i]);
  }
}

Tensors random_inputs(int64_t queries, int64_t keys) {
  return {torch::randn({kBatch, queries, kHeads, kChannels}), torch::randn({kBatch, keys, kHeads, kChannels}),
          torch::randn({kBatch, keys, kHeads, kChannels})};
}

TEST(NnAttention, MatchesTheCompositionUnderEachMask) {
  torch::manual_seed(1);
  DotProductAttention none = attention({.attn_mask_type = AttentionMask::kNone});
  expect_attention(none, random_inputs(5, 7), {}, torch::zeros({5, 7}, at::kBool));
  DotProductAttention causal_layer = attention({.attn_mask_type = AttentionMask::kCausal});
  const at::Tensor ignored = torch::ones({9, 9}, at::kBool);
  expect_attention(causal_layer, random_inputs(9, 9), ignored, causal(9, 9));
  DotProductAttention padding = attention({.attn_mask_type = AttentionMask::kPadding});
  at::Tensor masked = torch::zeros({kBatch, 1, 1, 7}, at::kBool);
  masked[1].slice(2, 4).fill_(true);
  expect_attention(padding, random_inputs(5, 7), masked, masked);
  EXPECT_THROW(padding->forward(torch::randn({1, 2, 4, 8}), torch::randn({1, 2, 4, 8}), torch::randn({1, 2, 4, 8})),
               c10::Error);
}

// Names and meanings are Transformer Engine's.
TEST(NnAttention, CausalCountsFromTheFirstKeyAndCausalBottomRightFromTheLast) {
  torch::manual_seed(2);
  DotProductAttention first = attention({.attn_mask_type = AttentionMask::kCausal});
  DotProductAttention last = attention({.attn_mask_type = AttentionMask::kCausalBottomRight});
  for (const auto& [queries, keys] : {std::array<int64_t, 2>{1, 7}, {3, 7}, {7, 3}, {70, 40}, {40, 70}, {9, 9}}) {
    SCOPED_TRACE(std::to_string(queries) + " queries, " + std::to_string(keys) + " keys");
    const at::Tensor every = torch::ones({queries, keys}, at::kBool);
    expect_attention(first, random_inputs(queries, keys), {}, every.tril(0).logical_not());
    expect_attention(last, random_inputs(queries, keys), {}, causal(queries, keys));
    const Tensors t = testing::leaves(random_inputs(queries, keys), at::kDouble);  // torch computes
    // Roundings, on either side: two sums over keys, a score's over channels, which e^x makes relative, and ten more.
    const double bound = 2 * (2.0 * static_cast<double>(keys) + kChannels + 10) * 0x1p-53 * testing::largest(t[2]);
    EXPECT_LE(testing::largest(first->forward(t[0], t[1], t[2]) - plain_attention(t, every.tril(0).logical_not())),
              bound);
    EXPECT_LE(testing::largest(last->forward(t[0], t[1], t[2]) - plain_attention(t, causal(queries, keys))), bound);
  }
}

TEST(NnAttention, AWindowHidesTheKeysBeforeIt) {
  torch::manual_seed(5);
  for (const AttentionMask mask : {AttentionMask::kCausal, AttentionMask::kCausalBottomRight}) {
    DotProductAttention layer = attention({.attn_mask_type = mask, .window = 3});
    for (const auto& [queries, keys] : {std::array<int64_t, 2>{1, 7}, {3, 7}, {7, 3}, {70, 40}, {40, 70}, {9, 9}}) {
      SCOPED_TRACE(std::to_string(queries) + " queries, " + std::to_string(keys) + " keys");
      const at::Tensor key = torch::arange(keys), query = torch::arange(queries).unsqueeze(1);
      const int64_t offset = mask == AttentionMask::kCausal ? 0 : keys - queries;
      const at::Tensor end = (query + offset + 1).clamp_max(keys);
      const at::Tensor masked = key.ge(end).logical_or(key.lt(end - 3));
      expect_attention(layer, random_inputs(queries, keys), {}, masked);
      const Tensors t = testing::leaves(random_inputs(queries, keys), at::kDouble);  // torch computes
      // As above.
      const double bound = 2 * (2.0 * static_cast<double>(keys) + kChannels + 10) * 0x1p-53 * testing::largest(t[2]);
      EXPECT_LE(testing::largest(layer->forward(t[0], t[1], t[2]) - plain_attention(t, masked)), bound);
    }
    const Tensors t = random_inputs(3, 9);
    layer->options.attn_mask_type = AttentionMask::kCausalBottomRight;
    EXPECT_TRUE(at::equal(layer->forward_cached(t[0], {t[1], t[2]}), layer->forward(t[0], t[1], t[2])));
  }
  EXPECT_THROW(attention({.attn_mask_type = AttentionMask::kNone, .window = 3}), c10::ValueError);
  EXPECT_THROW(attention({.window = -1}), c10::ValueError);
}

TEST(NnAttention, OverACacheQueriesAreTheLastTokens) {
  torch::manual_seed(3);
  const Tensors t = random_inputs(3, 7);
  DotProductAttention layer = attention({.attn_mask_type = AttentionMask::kCausal});
  DotProductAttention named = attention({.attn_mask_type = AttentionMask::kCausalBottomRight});
  const at::Tensor expected = named->forward(t[0], t[1], t[2]);
  EXPECT_TRUE(at::equal(layer->forward_cached(t[0], {t[1], t[2]}), expected));
  EXPECT_TRUE(at::equal(named->forward_cached(t[0], {t[1], t[2]}), expected));
  EXPECT_FALSE(at::equal(layer->forward(t[0], t[1], t[2]), expected));
}

TEST(NnAttention, ATokenHasTheSameBitsInAWholeSequenceAndInChunksOverACache) {
  torch::manual_seed(6);
  const torch::NoGradGuard no_grad;
  for (const int64_t window : {0, 5}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const CacheFormat format : {CacheFormat::kAsGiven, CacheFormat::kE4m3}) {
        DotProductAttention layer = attention({.num_gqa_groups = 1, .window = window});
        const at::Tensor query = torch::randn({kBatch, 30, kHeads, kChannels}).to(dtype);
        const at::Tensor key = torch::randn({kBatch, 30, 1, kChannels}).to(dtype), value = torch::randn_like(key);
        KeyValueCache at_once(30, format), in_turn(30, format);
        const at::Tensor whole = layer->forward_cached(query, at_once.append(key, value));
        EXPECT_EQ(at::equal(layer->forward(query, key, value), whole), format == CacheFormat::kAsGiven);
        int64_t begin = 0;
        for (const int64_t size : {11, 1, 3, 9, 1, 5}) {
          const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, size); };
          const at::Tensor chunk = layer->forward_cached(part(query), in_turn.append(part(key), part(value)));
          EXPECT_TRUE(at::equal(chunk, part(whole))) << size << " tokens from " << begin << ", window " << window;
          begin += size;
        }
      }
    }
  }
}

TEST(NnAttention, AQueryWithoutKeysGivesZero) {
  DotProductAttention layer = attention({.attn_mask_type = AttentionMask::kPadding});
  const at::Tensor masked = torch::ones({kBatch, 1, 1, 7}, at::kBool);
  const Tensors t = testing::leaves(random_inputs(5, 7), at::kFloat);
  const at::Tensor output = layer->forward(t[0], t[1], t[2], masked);
  EXPECT_EQ(testing::largest(output), 0);
  output.sum().backward();
  EXPECT_EQ(testing::largest(t[0].grad()), 0);
}

TEST(NnAttention, LayoutsGiveTheSameNumbers) {
  torch::manual_seed(3);
  const Tensors t = random_inputs(6, 6);
  DotProductAttention batch_first = attention({});
  DotProductAttention sequence_first(kHeads, kChannels, DotProductAttentionOptions{.qkv_format = Layout::kSbhd});
  const at::Tensor expected = batch_first->forward(t[0], t[1], t[2]);
  const at::Tensor output = sequence_first->forward(t[0].transpose(0, 1), t[1].transpose(0, 1), t[2].transpose(0, 1));
  EXPECT_TRUE(torch::equal(output.transpose(0, 1), expected));
}

TEST(NnAttention, HeadsOfAGroupShareKeysAndValues) {
  torch::manual_seed(4);
  Tensors t = random_inputs(6, 6);
  for (size_t i : {1, 2}) t[i] = t[i].slice(2, 0, 2).contiguous();
  DotProductAttention grouped = attention({.num_gqa_groups = 2});
  DotProductAttention plain = attention({});
  const at::Tensor expected = plain->forward(t[0], t[1].repeat_interleave(2, 2), t[2].repeat_interleave(2, 2));
  EXPECT_TRUE(torch::equal(grouped->forward(t[0], t[1], t[2]), expected));
  EXPECT_THROW(attention({.num_gqa_groups = 3}), c10::ValueError);
  EXPECT_THROW(grouped->forward(t[0], t[0], t[0]), c10::Error);
}

TEST(NnAttention, NarrowRecipesComputeInTheirHighPrecisionFormat) {
  const Tensors t = random_inputs(4, 4);
  DotProductAttention layer = attention({});
  const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
  EXPECT_EQ(layer->forward(t[0], t[1], t[2]).scalar_type(), at::kBFloat16);
}

TEST(NnAttention, DropoutIsForTrainingAlone) {
  torch::manual_seed(5);
  const Tensors t = random_inputs(6, 6);
  DotProductAttention layer = attention({.attention_dropout = 0.5});
  EXPECT_FALSE(torch::equal(layer->forward(t[0], t[1], t[2]), layer->forward(t[0], t[1], t[2])));
  layer->eval();
  EXPECT_TRUE(torch::equal(layer->forward(t[0], t[1], t[2]), attention({})->forward(t[0], t[1], t[2])));
}

TEST(NnKeyValueCache, ReturnsAllTokensAndRefusesMoreThanItHolds) {
  KeyValueCache cache(5);
  const at::Tensor keys = torch::randn({2, 5, 3, 4}), values = torch::randn({2, 5, 3, 4});
  cache.append(keys.slice(1, 0, 3), values.slice(1, 0, 3));
  const CachedTokens all = cache.append(keys.slice(1, 3), values.slice(1, 3));
  EXPECT_TRUE(torch::equal(all.key, keys));
  EXPECT_TRUE(torch::equal(all.value, values));
  EXPECT_THROW(cache.append(keys.slice(1, 0, 1), values.slice(1, 0, 1)), c10::Error);
  cache.clear();
  EXPECT_EQ(cache.append(keys.slice(1, 0, 1), values.slice(1, 0, 1)).key.size(1), 1);
  EXPECT_THROW(cache.append(keys.slice(0, 0, 1).slice(1, 0, 1), values.slice(0, 0, 1).slice(1, 0, 1)), c10::Error);
}

TEST(NnKeyValueCache, KeepsCodesWithAScaleForEachToken) {
  torch::manual_seed(6);
  const Tensors t = random_inputs(7, 7);
  KeyValueCache whole(8, CacheFormat::kE4m3), pieces(8, CacheFormat::kE4m3);
  const CachedTokens all = whole.append(t[1], t[2]);
  pieces.append(t[1].slice(1, 0, 4), t[2].slice(1, 0, 4));
  const CachedTokens last = pieces.append(t[1].slice(1, 4), t[2].slice(1, 4));
  EXPECT_EQ(all.key.scalar_type(), at::kByte);
  EXPECT_TRUE(torch::equal(all.key, last.key));
  EXPECT_TRUE(torch::equal(all.value, last.value));
  EXPECT_TRUE(torch::equal(all.key_scale, last.key_scale));
  EXPECT_TRUE(torch::equal(all.value_scale, last.value_scale));
  // The largest element of a token has the largest code, so that each value is within half a unit of 2^-3 of itself.
  const at::Tensor largest = t[1].abs().amax(3).transpose(1, 2);
  const at::Tensor error = (all.key_scale.to(at::kDouble) * 448 - largest).abs();
  EXPECT_TRUE((error <= 0x1p-24 * largest.to(at::kDouble)).all().item<bool>()) << "a quotient rounds once";
}

TEST(NnKeyValueCache, InPagesHasTheTokensOfOneInARow) {
  const at::NoGradGuard no_grad;
  for (const CacheFormat format : {CacheFormat::kAsGiven, CacheFormat::kBf16, CacheFormat::kE4m3}) {
    KeyValueCache row(22, format), memory(8, format);
    const at::Tensor key = torch::randn({1, 22, 2, 16}), value = torch::randn({1, 22, 2, 16});
    memory.append(torch::zeros({5, 1, 2, 16}), torch::zeros({5, 1, 2, 16}));
    KeyValueCache pages(memory.grow(0), format);
    EXPECT_THROW(pages.append(key, value), c10::Error) << "no pages yet";
    pages.set_pages(torch::tensor({3, 1}, torch::kInt));
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 12}, {12, 13}, {13, 22}}) {
      if (end == 22) pages.set_pages(torch::tensor({3, 1, 0}, torch::kInt));
      const CachedTokens expected = row.append(key.slice(1, begin, end), value.slice(1, begin, end));
      const CachedTokens all = pages.append(key.slice(1, begin, end), value.slice(1, begin, end));
      EXPECT_EQ(pages.length(), end);
      EXPECT_TRUE(torch::equal(all.key, expected.key));
      EXPECT_TRUE(torch::equal(all.value, expected.value));
      if (format != CacheFormat::kE4m3) continue;
      EXPECT_TRUE(torch::equal(all.key_scale, expected.key_scale));
      EXPECT_TRUE(torch::equal(all.value_scale, expected.value_scale));
    }
    EXPECT_THROW(pages.reserve(30), c10::Error);
    EXPECT_THROW(pages.set_pages(torch::tensor({3, 1}, torch::kInt)), c10::Error);
  }
}

TEST(NnKeyValueCache, AttentionOverCodesIsCloseToAttentionOverValues) {
  torch::manual_seed(7);
  const Tensors t = random_inputs(6, 6);
  DotProductAttention layer = attention({});
  KeyValueCache cache(6, CacheFormat::kE4m3);
  layer->eval();
  const at::Tensor got = layer->forward_cached(t[0], cache.append(t[1], t[2]));
  // E4M3 rounds keys and values by 2^-4 of themselves. A score then moves by at most 2^-4 sum|q k| / sqrt(channels), a
  // weight by twice as much of itself, with the sum.
  const at::Tensor magnitude = torch::matmul(t[0].abs().transpose(1, 2), t[1].abs().permute({0, 2, 3, 1}));
  const double shift = (0x1p-4 * magnitude / std::sqrt(static_cast<double>(kChannels))).max().item<double>();
  const at::Tensor bound = (0x1p-4 + std::expm1(2 * shift)) * 1.1 * layer->forward(t[0], t[1], t[2].abs());
  EXPECT_TRUE(((got - layer->forward(t[0], t[1], t[2])).abs() <= bound).all().item<bool>());
  EXPECT_FALSE(torch::equal(got, layer->forward(t[0], t[1], t[2])));
}

}  // namespace
}  // namespace plimsoll::nn
