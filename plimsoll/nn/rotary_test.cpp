#include "plimsoll/nn/rotary.h"

#include <cmath>
#include <thread>

#include "plimsoll/nn/testing.h"
#include "plimsoll/ops/attention/attention.h"

namespace plimsoll::nn {
namespace {

at::Tensor floats(const std::vector<float>& values) { return torch::tensor(values); }

// Values of transformers 5.23: LlamaRotaryEmbedding(config).inv_freq.
TEST(NnRotary, FrequenciesHaveTheBitsOfTransformers) {
  EXPECT_TRUE(at::equal(
      RotaryTable(24).inv_freq(),
      floats({0x1.0p+0f, 0x1.db4c78p-2f, 0x1.b93a6ap-3f, 0x1.99999ap-4f, 0x1.7c3d2ap-5f, 0x1.60fb8cp-6f, 0x1.47ae14p-7f,
              0x1.3030f4p-8f, 0x1.1a62d2p-9f, 0x1.0624dep-10f, 0x1.e6b4b8p-12f, 0x1.c3d14ep-13f})));
  EXPECT_TRUE(at::equal(RotaryTable(16, {.theta = 1e6, .scaling = RotaryScaling::kLinear, .factor = 3}).inv_freq(),
                        floats({0x1.555556p-2f, 0x1.e596bep-5f, 0x1.5967b2p-7f, 0x1.eb61a0p-10f, 0x1.5d867ep-12f,
                                0x1.f13e32p-15f, 0x1.61b1dap-17f, 0x1.f72caep-20f})));
  // Long, short and, at 8, between.
  EXPECT_TRUE(
      at::equal(RotaryTable(32, {.theta = 5e5, .scaling = RotaryScaling::kLlama3, .factor = 8}).inv_freq(),
                floats({0x1.0p+0f, 0x1.c2ef78p-2f, 0x1.8d2760p-3f, 0x1.5dc95ap-4f, 0x1.341190p-5f, 0x1.0f5386p-6f,
                        0x1.ddee9ep-8f, 0x1.a4ee40p-9f, 0x1.132ba4p-11f, 0x1.46831ap-14f, 0x1.1f91f0p-15f,
                        0x1.fa8b86p-17f, 0x1.be2188p-18f, 0x1.88ec20p-19f, 0x1.5a0f4ep-20f, 0x1.30c94ep-21f})));
  EXPECT_TRUE(at::equal(RotaryTable(96, {.share = 0.25}).inv_freq(), RotaryTable(24).inv_freq()));
}

// In long double: with torch's cosines of doubles this failed once, on a busy machine, and nobody found out why.
TEST(NnRotary, RowsAreTheCosinesAndSinesOfAnglesInFp32) {
  const RotaryTable table(24);
  const ops::RotaryTurns rows = table.at(0, 5000);
  const auto frequency = table.inv_freq().accessor<float, 1>();
  const auto cosine = rows.cosine.accessor<float, 2>(), sine = rows.sine.accessor<float, 2>();
  for (int64_t row = 0; row < 5000; ++row) {
    for (int64_t channel = 0; channel < 24; ++channel) {
      const auto angle = static_cast<long double>(static_cast<float>(row) * frequency[channel % 12]);
      ASSERT_EQ(cosine[row][channel], static_cast<float>(std::cos(angle))) << row << " " << channel;
      ASSERT_EQ(sine[row][channel], static_cast<float>(std::sin(angle))) << row << " " << channel;
    }
  }
}

TEST(NnRotary, ARowHasTheSameBitsWhateverElseIsAskedFor) {
  const ops::RotaryTurns expected = RotaryTable(16).at(0, 300);
  const RotaryTable table(16), copy = table;
  const ops::RotaryTurns late = table.at(290, 10), early = copy.at(3, 40);
  EXPECT_TRUE(at::equal(late.cosine, expected.cosine.slice(0, 290, 300)));
  EXPECT_TRUE(at::equal(early.sine, expected.sine.slice(0, 3, 43)));
  const at::Tensor positions = torch::tensor({{7, 299, 0}, {7, 8, 9}}, at::kLong);
  const ops::RotaryTurns each = table.at(positions);
  EXPECT_EQ(each.cosine.sizes(), at::IntArrayRef({2, 3, 16}));
  EXPECT_TRUE(at::equal(each.cosine, expected.cosine.index_select(0, positions.flatten()).view({2, 3, 16})));
  EXPECT_TRUE(at::equal(each.sine, expected.sine.index_select(0, positions.flatten()).view({2, 3, 16})));
  EXPECT_EQ(table.at(positions.slice(0, 0, 0)).cosine.sizes(), at::IntArrayRef({0, 3, 16}));
}

TEST(NnRotary, ThreadsShareATable) {
  const RotaryTable table(16);
  const ops::RotaryTurns expected = RotaryTable(16).at(0, 2000);
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (size_t i = 0; i < good.size(); ++i) {
    threads.emplace_back([&, i] {
      const int64_t count = 500 * (static_cast<int64_t>(i) + 1);
      good[i] = at::equal(table.at(0, count).sine, expected.sine.slice(0, 0, count)) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, std::vector<int>(4, 1));
}

// A batch whose rows stand at other places, a step of decoding, and whole sequences turn a token alike.
TEST(NnRotary, ATokenIsTurnedAlikeInABatchAndAlone) {
  torch::manual_seed(1);
  const RotaryTable table(24, {.share = 0.5});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::randn({2, 6, 3, 24}).to(dtype).requires_grad_();
    const at::Tensor positions = torch::tensor({{0, 1, 2, 3, 4, 5}, {40, 41, 42, 9, 8, 7}}, at::kLong);
    const at::Tensor got = ops::rotary(x, table.at(positions), {}), seed = torch::randn(got.sizes()).to(dtype);
    got.backward(seed);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < 6; ++i) {
        const at::Tensor token = x.detach()[b][i].view({1, 1, 3, 24}).requires_grad_();
        const auto place = positions[b][i].item<int64_t>();
        const at::Tensor alone = ops::rotary(token, table.at(place, 1), {.position_dim = 1});
        EXPECT_TRUE(at::equal(alone[0][0], got[b][i]));
        alone.backward(seed[b][i].view({1, 1, 3, 24}));
        EXPECT_TRUE(at::equal(token.grad()[0][0], x.grad()[b][i]));
      }
    }
    EXPECT_TRUE(at::equal(ops::rotary(x[0].unsqueeze(0), table.at(0, 6), {.position_dim = 1})[0], got[0]));
    const at::Tensor angles =
        torch::arange(6, at::kFloat).unsqueeze(1) * torch::cat({table.inv_freq(), table.inv_freq()});
    const at::Tensor by_angles = ops::rotary(x, angles, {.position_dim = 1})[0];
    // Torch's own cosines are within an ulp or two of FP32 of the right ones.
    EXPECT_LE(testing::largest(by_angles - got[0]), (dtype == at::kFloat ? 0x1p-20 : 0x1p-7) * testing::largest(x));
  }
}

TEST(NnRotary, AFusedProjectionIsTurnedWithoutBeingTakenApart) {
  torch::manual_seed(2);
  const int64_t heads = 6, groups = 2;
  const RotaryTable table(24, {.share = 0.5});
  const ops::AttentionOptions options = {.causal = ops::Causal::kTopLeft, .window = 4};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor packed = torch::randn({2, 9, heads + 2 * groups, 24}).to(dtype).requires_grad_();
    const at::Tensor parts = packed.detach().clone().requires_grad_();
    const ops::RotaryTurns turns = table.at(0, 9);
    const at::Tensor got = ops::attention_packed(
        ops::rotary(packed, turns, {.position_dim = 1, .copied_heads = groups}), {heads, groups}, options);
    const auto turned = [&](int64_t begin, int64_t count) {
      return ops::rotary(parts.narrow(2, begin, count), turns, {.position_dim = 1}).transpose(1, 2);
    };
    const at::Tensor value = parts.narrow(2, heads + groups, groups).transpose(1, 2);
    const at::Tensor expected = ops::attention(turned(0, heads), turned(heads, groups), value, options).transpose(1, 2);
    EXPECT_TRUE(at::equal(got, expected));
    const at::Tensor seed = torch::randn(got.sizes()).to(dtype);
    got.backward(seed);
    expected.backward(seed);
    EXPECT_TRUE(at::equal(packed.grad(), parts.grad()));
  }
}

TEST(NnRotary, RefusesWhatItCannotTurn) {
  EXPECT_THROW(RotaryTable(1), c10::ValueError);
  EXPECT_THROW(RotaryTable(16, {.share = 1.5}), c10::ValueError);
  EXPECT_THROW(RotaryTable(10, {.share = 0.5}), c10::ValueError);
  EXPECT_THROW(RotaryTable(16, {.theta = 0}), c10::ValueError);
  EXPECT_THROW(RotaryTable(16, {.scaling = RotaryScaling::kLinear, .factor = 0}), c10::ValueError);
  EXPECT_THROW(RotaryTable(16, {.low_freq_factor = 4, .high_freq_factor = 4}), c10::ValueError);
  const RotaryTable table(16);
  EXPECT_THROW(table.at(-1, 3), c10::Error);
  EXPECT_THROW(table.at(0, int64_t{1} << 40), c10::Error);
  EXPECT_THROW(table.at(torch::tensor({3, -1}, at::kLong)), c10::Error);
  EXPECT_THROW(table.at(torch::tensor({3}, at::kInt)), c10::Error);
  const at::Tensor x = torch::zeros({2, 6, 3, 16});
  EXPECT_THROW(ops::rotary(x, table.at(torch::zeros({2, 5}, at::kLong)), {}), c10::Error);
  EXPECT_THROW(ops::rotary(x, table.at(0, 2), {.copied_heads = 4}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::nn
