#include "plimsoll/shard/optimizer/sharded_optimizer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <limits>

#include "plimsoll/shard/checkpoint/partition.h"
#include "plimsoll/shard/communicator/ranks_testing.h"
#include "plimsoll/shard/data_parallel/sharded_data_parallel.h"
#include "plimsoll/shard/optimizer/sharded_grad_scaler.h"

namespace plimsoll::shard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BalancedOwners, EachGoesToTheRankWithTheLeast) {
  const std::vector<int64_t> sizes = {4, 5, 2, 6, 4};
  EXPECT_THAT(balanced_owners(sizes, 3), ElementsAre(0, 1, 2, 2, 0));
  EXPECT_THAT(balanced_owners(sizes, 1), Each(0));
  EXPECT_TRUE(balanced_owners({}, 3).empty());
}

// One parameter is large enough to travel by itself.
torch::nn::Sequential wide_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(9, 8000), torch::nn::Tanh(), torch::nn::Linear(8000, 3));
}

std::vector<optim::NamedGroup> groups_of(torch::nn::Sequential& model) {
  return optim::decay_groups(model->named_parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

void backward_of_step(torch::nn::Sequential& model, int64_t step, int64_t rank) {
  torch::manual_seed(static_cast<uint64_t>(10 * step + rank));
  const at::ScalarType dtype = model->parameters().front().scalar_type();
  const at::Tensor x = at::randn({4, 9}).to(dtype), y = at::randn({4, 3}).to(dtype);
  at::mse_loss(model->forward(x), y).backward();
}

void expect_equal(torch::nn::Sequential& a, torch::nn::Sequential& b) {
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(item.value().equal(b->named_parameters()[item.key()])) << item.key();
  }
}

constexpr int64_t kTrainSteps = 4;
struct Kept {
  at::ScalarType dtype;
  optim::StateKind states;
  optim::MasterKind masters = optim::MasterKind::kFp32;
};
constexpr Kept kKept[] = {{at::kFloat, optim::StateKind::kFp32},
                          {at::kFloat, optim::StateKind::kBf16},
                          {at::kBFloat16, optim::StateKind::k8Bit, optim::MasterKind::kSplit},
                          {at::kBFloat16, optim::StateKind::k8Bit, optim::MasterKind::kNone}};

// ZeRO-1 and, at two ranks, whose sums have one order, ZeRO-2 change no bit; nor of narrow states.
void expect_the_bits_of_ddp(const Launch& launch, const std::shared_ptr<Communicator>& ranks, bool zero2,
                            const Kept& kept) {
  const optim::AdamWSettings settings{.optimizer_state = kept.states, .masters = kept.masters, .seed = 5};
  torch::nn::Sequential theirs = wide_model(), ours = wide_model();
  for (torch::nn::Sequential* model : {&theirs, &ours}) (*model)->to(kept.dtype);
  DistributedDataParallel their_parallel(*theirs, ranks);
  optim::AdamW their_optimizer(groups_of(theirs), settings);
  ShardedOptimizer optimizer(groups_of(ours), ranks, settings);
  const auto parallel = zero2 ? std::make_shared<ShardedDataParallel>(*ours, optimizer, ranks)
                              : std::make_shared<DistributedDataParallel>(*ours, ranks);
  for (int64_t step = 0; step < kTrainSteps; ++step) {
    their_optimizer.zero_grad();
    optimizer.zero_grad();
    {
      const auto their_wait = their_parallel.no_sync();
      const auto wait = parallel->no_sync();
      backward_of_step(theirs, 100 + step, launch.rank);
      backward_of_step(ours, 100 + step, launch.rank);
    }
    backward_of_step(theirs, step, launch.rank);
    backward_of_step(ours, step, launch.rank);
    for (const at::Tensor& parameter : ours->parameters()) {
      EXPECT_EQ(parameter.grad().defined(), !zero2 || optimizer.owner_of(parameter) == launch.rank);
    }
    const ops::StepReport their_report = their_optimizer.update(), report = optimizer.update();
    // Squares are summed in fp64 in another order, each addition by 2^-53 of the sum at most; the root halves that.
    const double elements = 9 * 8000 + 8000 + 8000 * 3 + 3;
    EXPECT_NEAR(report.grad_norm, their_report.grad_norm, elements * 0x1p-53 * their_report.grad_norm);
    expect_equal(ours, theirs);
  }
  for (const auto& [name, state] : optimizer.state_dict()) {
    EXPECT_TRUE(state.equal(their_optimizer.state_dict().at(name))) << name;
  }
  const at::Tensor states = at::full({}, static_cast<double>(optimizer.state_dict().size()));
  ranks->all_reduce_(states).wait();
  EXPECT_EQ(states.item<double>(), static_cast<double>(their_optimizer.state_dict().size()));
}

TEST(ShardedOptimizer, HasTheBitsOfDataParallel) {
  testing::on_ranks(3, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    for (const Kept& kept : kKept) expect_the_bits_of_ddp(launch, ranks, false, kept);
  });
}

TEST(ShardedDataParallel, HasTheBitsOfDataParallelAndEachGradientOnOneRank) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    for (const Kept& kept : kKept) expect_the_bits_of_ddp(launch, ranks, true, kept);
  });
}

TEST(ShardedOptimizer, ClipsByTheNormOfAllGradientsAndMoreRanksThanParametersWork) {
  testing::on_ranks(3, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    std::vector<optim::NamedGroup> groups = {{{}, torch::optim::AdamWOptions(0.1).eps(1e-30)}};
    for (const char* name : {"a", "b"}) {
      groups[0].parameters.emplace_back(name, at::ones({8}).requires_grad_());
      groups[0].parameters.back().second.mutable_grad() = at::full({8}, 2.0);
    }
    ShardedOptimizer optimizer(groups, ranks);
    const ops::StepReport report = optimizer.update({.max_norm = 1});
    EXPECT_EQ(report.grad_norm, 8);  // sqrt(2 * 8 * 4)
    EXPECT_EQ(report.clip_factor, ops::clip_factor(1, 8));
    EXPECT_EQ(optimizer.state_dict().size(), launch.rank < 2 ? 3u : 0u);
  });
}

// The parameters are another part on each rank; what is Inf is on rank 1 alone.
TEST(ShardedGradScaler, InfOnOneRankAloneMakesAllSkip) {
  testing::on_ranks(3, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    const at::Tensor mine = at::ones({4}).requires_grad_();
    torch::optim::SGD optimizer({mine}, 0.5);
    ShardedGradScaler scaler(ranks, {.init_scale = 1024, .growth_interval = 2});
    const auto step = [&](double grad) {
      scaler.scale(at::ones({}));
      mine.mutable_grad() = at::full({4}, grad * scaler.get_scale());
      const ops::StepReport report = scaler.step(optimizer, {.max_norm = 1});
      scaler.update();
      return report;
    };
    const double infinity = std::numeric_limits<double>::infinity();
    const ops::StepReport skipped = step(launch.rank == 1 ? infinity : 1.0);
    EXPECT_TRUE(skipped.skipped);
    EXPECT_EQ(skipped.non_finite, 4);
    EXPECT_THAT(skipped.first_non_finite, HasSubstr("rank 1"));
    EXPECT_TRUE(mine.equal(at::ones({4})));
    EXPECT_EQ(scaler.get_scale(), 512);
    const ops::StepReport clean = step(1.0);
    EXPECT_FALSE(clean.skipped);
    EXPECT_DOUBLE_EQ(clean.grad_norm, std::sqrt(12.0));
    const float clipped = 1.0f * static_cast<float>(ops::clip_factor(1, std::sqrt(12.0)));
    EXPECT_TRUE(mine.equal(at::full({4}, 1.0f - 0.5f * clipped)));
    EXPECT_EQ(scaler.growth_tracker(), 1);
    step(1.0);
    EXPECT_EQ(scaler.get_scale(), 1024);
  });
}

TEST(ShardedGradScaler, OptimizersOfOneScaleEachAndAHysteresisAreAlikeOnAllRanks) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    const at::Tensor mine[] = {at::ones({4}).requires_grad_(), at::ones({2}).requires_grad_()};
    torch::optim::SGD first({mine[0]}, 0.5), second({mine[1]}, 0.5);
    ShardedGradScaler scaler(ranks, {.init_scale = 16, .hysteresis = 2, .optimizers = {&first, &second}});
    for (const double expected : {16, 8}) {
      for (torch::optim::Optimizer* optimizer : {&first, &second}) {
        const at::Tensor& parameter = optimizer->parameters().front();
        scaler.scale(parameter.sum(), *optimizer).backward();
        if (launch.rank == 1 && optimizer == &first) parameter.mutable_grad().fill_(HUGE_VAL);
        scaler.step(*optimizer);
        optimizer->zero_grad();
      }
      scaler.update();
      EXPECT_EQ(scaler.get_scale(first), expected);
      EXPECT_EQ(scaler.get_scale(second), 16);
    }
    EXPECT_TRUE(mine[0].equal(at::ones({4})));
    EXPECT_TRUE(mine[1].equal(at::zeros({2})));
  });
}

TEST(ShardedGradScaler, ARankWithoutGradientsTakesPart) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    std::vector<optim::NamedGroup> groups = {
        {{{"only", at::ones({4}).requires_grad_()}}, torch::optim::AdamWOptions()}};
    const at::Tensor& only = groups[0].parameters[0].second;
    ShardedOptimizer optimizer(groups, ranks);
    ShardedGradScaler scaler(ranks, {.init_scale = 8});
    scaler.scale(at::ones({}));
    if (launch.rank == 0) only.mutable_grad() = at::full({4}, 8.0);
    EXPECT_EQ(scaler.step(optimizer).grad_norm, 2);
    scaler.update();
    EXPECT_FALSE(only.equal(at::ones({4})));
    const at::Tensor all = ranks->all_gather(only.detach().unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
  });
}

}  // namespace
}  // namespace plimsoll::shard
