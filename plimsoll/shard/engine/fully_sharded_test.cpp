#include "plimsoll/shard/engine/fully_sharded.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/shard/communicator/ranks_testing.h"
#include "plimsoll/shard/communicator/wire_bytes.h"
#include "plimsoll/shard/engine/mapped_tensor.h"
#include "plimsoll/shard/engine/sharded_norm.h"
#include "plimsoll/shard/optimizer/sharded_adamw.h"

namespace plimsoll::shard {
namespace {

using namespace std::chrono_literals;

// Three linear layers, two of them units of their own.
struct Chain {
  explicit Chain(const std::shared_ptr<const Communicator>& ranks, FullyShardedOptions options = {}) {
    torch::manual_seed(5);
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(7, 7));
    sharded.emplace(*layers, std::vector{layers->ptr(1), layers->ptr(2)}, ranks, options);
  }
  at::Tensor layer(size_t i, const at::Tensor& x) { return layers->ptr<torch::nn::LinearImpl>(i)->forward(x); }
  at::Tensor forward(const at::Tensor& x) {
    return sharded->forward([&] {
      at::Tensor hidden = layer(0, x);
      for (size_t i = 1; i < 3; ++i) hidden = sharded->run(i, [&] { return layer(i, hidden).tanh(); });
      return hidden.sum();
    });
  }

  torch::nn::ModuleList layers;
  std::optional<FullyShardedDataParallel> sharded;
};

TEST(FullySharded, GradientsAreThoseOfOneProcess) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    Chain ours(ranks), alone(Communicator::connect({}));
    torch::manual_seed(7);
    const at::Tensor x = at::randn({4, 7});
    {
      const auto no_sync = ours.sharded->no_sync();
      ours.forward(x.narrow(0, 2 * launch.rank, 1)).backward();
    }
    ours.forward(x.narrow(0, 2 * launch.rank + 1, 1)).backward();
    (alone.forward(x) / 2).backward();
    const NamedTensors shards = ours.sharded->parameters(), whole = alone.sharded->parameters();
    ASSERT_EQ(shards.size(), whole.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const at::Tensor& grad = whole[i].second.grad();
      const int64_t part = (grad.numel() + 1) / 2, begin = launch.rank * part;
      const at::Tensor expected = grad.narrow(0, begin, std::min(part, grad.numel() - begin));
      // Four rows and seven features, summed in another order, of numbers below one.
      EXPECT_TRUE(shards[i].second.grad().allclose(expected, 28 * 0x1p-23, 28 * 0x1p-23)) << shards[i].first;
    }
    const auto scope = ours.sharded->full_parameters();
    EXPECT_TRUE(ours.layers->parameters()[2].equal(alone.layers->parameters()[2]));
  });
}

TEST(FullySharded, WhatIsFrozenLaterHasNoGradientUntilItTrainsAgain) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    for (const bool flatten : {true, false}) {
      Chain chain(ranks, {.flatten_parameters = flatten});
      const at::Tensor x = at::ones({2, 7});
      const auto gradients = [&] {
        std::vector<bool> there;
        for (auto& [name, leaf] : chain.sharded->parameters()) {
          there.push_back(leaf.grad().defined());
          leaf.mutable_grad().reset();
        }
        return there;
      };
      const std::vector<bool> all(flatten ? 3 : 6, true);
      std::vector<bool> but_one = all;
      but_one[1] = false;
      chain.forward(x).backward();
      EXPECT_EQ(gradients(), all);
      chain.sharded->parameters()[1].second.set_requires_grad(false);
      chain.forward(x).backward();
      EXPECT_EQ(gradients(), but_one);
      chain.sharded->parameters()[1].second.set_requires_grad(true);
      chain.forward(x).backward();
      EXPECT_EQ(gradients(), all);
    }
    Chain chain(ranks);
    chain.layers->ptr<torch::nn::LinearImpl>(1)->weight.set_requires_grad(false);
    EXPECT_THAT(
        [&] {
          chain.forward(at::ones({2, 7}));
        },
        ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("got 1 of 2 frozen (1.weight)")));
  });
}

TEST(FullySharded, TheLargestNormIsNaNWhereverANaNStands) {
  const auto alone = Communicator::connect({});
  for (const size_t place : {0UL, 1UL, 2UL}) {
    std::vector<at::Tensor> gradients = {at::full({2}, 1.0F), at::full({2}, 3.0F), at::full({2}, 2.0F)};
    EXPECT_EQ(global_norm(gradients, *alone, INFINITY), 3);
    gradients[place][1] = NAN;
    EXPECT_TRUE(std::isnan(global_norm(gradients, *alone, INFINITY))) << place;
  }
}

constexpr int64_t kSide = 1024;

struct CodedLayer : torch::nn::Module {
  CodedLayer() {
    torch::manual_seed(3);
    weight = register_parameter("weight", at::randn({kSide, kSide}));
  }
  at::Tensor forward(const at::Tensor& x) { return ops::linear(x, weight, {}, amp::linear_scaling(state, weight)); }

  at::Tensor weight;
  std::shared_ptr<ops::LinearState> state = std::make_shared<ops::LinearState>("layer");
};

FullyShardedOptions coded(const CodedLayer& layer) {
  return {.layer_of = [state = layer.state](const std::string&) { return state; }};
}

// Two steps: of delayed scaling the second one's scale is that of the first one's amax.
void codes_have_the_bits_of_the_layers_own(const std::shared_ptr<const Communicator>& ranks,
                                           const std::string& recipe) {
  CodedLayer ours, alone;
  FullyShardedDataParallel sharded(ours, {}, ranks, coded(ours));
  for (int step = 0; step < 2; ++step) {
    torch::manual_seed(11 + step);
    const at::Tensor x = at::randn({8, kSide}).requires_grad_(), y = x.detach().clone().requires_grad_();
    at::Tensor out, expected;
    {
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(recipe)});
      out = sharded.forward([&] { return ours.forward(x); });
    }
    {
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(recipe)});
      expected = alone.forward(y);
    }
    EXPECT_EQ(ours.weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(ours.state->weight_source.is_given());
    out.sum().backward();
    expected.sum().backward();
    EXPECT_FALSE(ours.state->weight_source.is_given());
    EXPECT_TRUE(out.equal(expected)) << recipe;
    EXPECT_TRUE(x.grad().equal(y.grad())) << recipe;
    EXPECT_TRUE(ours.state->weight.scale.equal(alone.state->weight.scale)) << recipe;
    const at::Tensor shard = sharded.parameters().front().second;
    EXPECT_TRUE(
        shard.grad().equal(alone.weight.grad().flatten().narrow(0, ranks->rank() * shard.numel(), shard.numel())));
    const at::NoGradGuard no_grad;
    shard.mul_(3);  // another amax
    alone.weight.mul_(3);
    shard.mutable_grad().reset();
    alone.weight.mutable_grad().reset();
  }
}

TEST(FullySharded, CodesHaveTheBitsOfTheLayersOwn) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    codes_have_the_bits_of_the_layers_own(ranks, "fp8");
    codes_have_the_bits_of_the_layers_own(ranks, "fp8-current");
  });
}

uint64_t bytes_of_a_gather(FullyShardedDataParallel& sharded, const Communicator& ranks) {
  ranks.barrier();
  const int64_t before = bytes_on_the_wire();
  sharded.before(0);
  ranks.barrier();
  const int64_t sent = bytes_on_the_wire() - before;
  sharded.after(0, {});
  return sent;
}

TEST(FullySharded, CodesTakeHalfOfTheBytesOfBf16) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    CodedLayer in_codes, in_bf16;
    FullyShardedDataParallel codes(in_codes, {}, ranks, coded(in_codes));
    FullyShardedDataParallel values(in_bf16, {}, ranks, {.mixed_precision = true, .compute_dtype = at::kBFloat16});
    const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
    const double bf16 = static_cast<double>(bytes_of_a_gather(values, *ranks));
    EXPECT_GE(bf16, kSide * kSide);  // half of two bytes each
    EXPECT_LE(static_cast<double>(bytes_of_a_gather(codes, *ranks)), 0.52 * bf16);
  });
}

// Rank 1 ends before the unit's parameters are gathered, in the second pass, or before its gradients are reduced.
void expect_error_when_killed(const Launch& launch, bool in_backward) {
  const auto ranks = testing::connect(launch);
  Chain chain(ranks);
  chain.forward(at::ones({1, 7})).backward();
  const at::Tensor x = at::ones({1, 7}).requires_grad_();
  if (in_backward) {
    const at::Tensor loss = chain.forward(x);
    if (launch.rank == 1) x.register_hook([](const at::Tensor&) { raise(SIGKILL); });
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(loss.backward(), c10::DistBackendError);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 60s) << "the deadline is later";
  } else {
    if (launch.rank == 1) raise(SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(chain.forward(x), c10::DistBackendError);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 60s) << "the deadline is later";
  }
}

TEST(FullySharded, ARankKilledBeforeItGathers) {
  testing::on_ranks(2, [](const Launch& launch) { expect_error_when_killed(launch, false); }, {.killed = {1}});
}

TEST(FullySharded, ARankKilledBeforeItReduces) {
  testing::on_ranks(2, [](const Launch& launch) { expect_error_when_killed(launch, true); }, {.killed = {1}});
}

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Stepped {
  at::Tensor weight;
  int64_t held_bytes = 0;  // of memory, between steps
};

// Two steps on one rank, of 64 MB of parameters.
Stepped step(const std::optional<std::filesystem::path>& folder) {
  const int64_t before = resident_bytes();
  torch::manual_seed(5);
  torch::nn::Linear layer(torch::nn::LinearOptions(4096, 4096).bias(false));
  const auto ranks = Communicator::connect({});
  FullyShardedDataParallel sharded(*layer, {}, ranks, {.flatten_parameters = false, .offload_folder = folder});
  optim::AdamWSettings settings;
  if (folder) {
    settings.home = {
        .zeros = [&](at::IntArrayRef sizes, at::ScalarType dtype) { return mapped_zeros(sizes, dtype, *folder); },
        .rest = release_pages};
  }
  ShardedAdamW optimizer({{sharded.parameters(), torch::optim::AdamWOptions(1e-3)}}, ranks, settings);
  const at::Tensor x = at::ones({2, 4096});
  for (int i = 0; i < 2; ++i) {
    sharded.forward([&] { return layer->forward(x).square().sum(); }).backward();
    optimizer.update({});
    if (i == 0) optimizer.zero_grad();
  }
  const int64_t held = resident_bytes() - before;
  const auto scope = sharded.full_parameters(/*writes_back=*/false);
  return {layer->weight.detach().clone(), held};
}

TEST(FullySharded, WhatIsOffloadedLeavesTheMemoryOfTheProcess) {
  const io::TemporaryDirectory files;
  const Stepped offloaded = step(files.path()), kept = step(std::nullopt);
  EXPECT_TRUE(offloaded.weight.equal(kept.weight));
  EXPECT_TRUE(std::filesystem::is_empty(files.path()));
#if !defined(__SANITIZE_ADDRESS__)  // AddressSanitizer keeps what has been freed
  const double parameters = 4096.0 * 4096.0;
  EXPECT_GE(static_cast<double>(kept.held_bytes - offloaded.held_bytes), 0.9 * 16 * parameters);
#endif
}

TEST(FullySharded, OffloadWhereNothingCanBeWrittenIsAnError) {
  EXPECT_THAT([] { mapped_zeros({1}, at::kFloat, "/nowhere"); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("cannot make a file in /nowhere")));
}

}  // namespace
}  // namespace plimsoll::shard
