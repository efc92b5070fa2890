// Averages of gradients: after exceptions, around passes inside a pass, over several backward().
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <optional>
#include <stdexcept>

#include "plimsoll/shard/communicator/ranks_testing.h"
#include "plimsoll/shard/data_parallel/sharded_data_parallel.h"

namespace plimsoll::shard {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kLayers = 4;
// Partial sums of a weight's gradients: of two backward(), each with four uses of the weight, in two orders. They are not
// beyond the largest element of the whole, as all uses have the same loss.
constexpr double kRoundings = 2 * 2 * 4;

// Weights of one shape, whose gradients come from the last to the first.
struct Layers : torch::nn::Module {
  Layers() {
    torch::manual_seed(5);
    for (size_t i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
    }
    register_module("layers", layers);
  }
  at::Tensor weight(size_t i) const { return layers->ptr<torch::nn::LinearImpl>(i)->weight; }

  at::Tensor forward(const at::Tensor& x) { return forward(x, 0, kLayers); }
  at::Tensor forward(at::Tensor x, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      x = layers->ptr<torch::nn::LinearImpl>(i)->forward(x);
      if (i == breaks && x.requires_grad())
        x.register_hook([](const at::Tensor&) { throw std::runtime_error("broken off"); });
      x = x.tanh();
    }
    return x;
  }

  torch::nn::ModuleList layers;
  std::optional<size_t> breaks;  // before the gradient of this layer
  size_t first_again = 0;        // layers that Again computes begin here
};

// Layers of the module again in backward, which calls backward() for it, as a checkpoint with reentrance does.
struct Again : torch::autograd::Function<Again> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t module) {
    context->saved_data["module"] = module;
    context->save_for_backward({x});
    const at::NoGradGuard no_grad;
    auto* const layers = reinterpret_cast<Layers*>(module);
    return layers->forward(x, layers->first_again, kLayers);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode grad(true);
    auto* const layers = reinterpret_cast<Layers*>(context->saved_data["module"].toInt());
    layers->forward(x, layers->first_again, kLayers).backward(grads[0]);
    return {x.grad(), at::Tensor()};
  }
};

struct Uses {
  bool before = false, after = false;  // outside of the two recomputations
};
at::Tensor energy(Layers& module, at::Tensor x, const Uses& uses = {}) {
  x = x.detach().requires_grad_();
  if (uses.before) x = module.forward(x);
  for (int i = 0; i < 2; ++i) x = Again::apply(2 * x, reinterpret_cast<int64_t>(&module));
  if (uses.after) x = module.forward(x);
  return x.square().sum();
}

at::Tensor rows(int64_t rank, int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(10 * step + rank));
  return at::randn({3, 6});
}

// Everybody's averages, or the owners' alone.
struct Parallel {
  Parallel(Layers& module, std::shared_ptr<const Communicator> ranks, bool sharded)
      : optimizer(optim::one_group(module.named_parameters(), torch::optim::AdamWOptions(0.1)), ranks) {
    if (sharded) {
      all = std::make_unique<ShardedDataParallel>(module, optimizer, ranks, DataParallelOptions{.bucket_cap_mb = 1e-6});
    } else {
      all = std::make_unique<DistributedDataParallel>(module, ranks, DataParallelOptions{.bucket_cap_mb = 1e-6});
    }
  }
  ShardedOptimizer optimizer;
  std::unique_ptr<DistributedDataParallel> all;
};

void clear(Layers& module) {
  for (at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}

// Two ranks: the mean of what each has computed without the other, on those that are to have it.
void expect_averages(const Layers& module, const Layers& alone, const Parallel& parallel, const Communicator& ranks,
                     bool sharded) {
  for (size_t i = 0; i < kLayers; ++i) {
    const at::Tensor mean = ranks.all_gather(alone.weight(i).grad().unsqueeze(0)).mean(0);
    const at::Tensor& grad = module.weight(i).grad();
    if (sharded && parallel.optimizer.owner_of(module.weight(i)) != ranks.rank()) {
      EXPECT_FALSE(grad.defined()) << i;
    } else {
      ASSERT_TRUE(grad.defined()) << i;
      const double error = (grad.to(at::kDouble) - mean.to(at::kDouble)).abs().max().item<double>();
      EXPECT_LE(error, kRoundings * 0x1p-24 * mean.abs().max().item<double>()) << i;
    }
  }
}

void after_exceptions(const Launch& launch, bool sharded) {
  const auto ranks = testing::connect(launch);
  Layers module, alone;
  const Parallel parallel(module, ranks, sharded);
  for (int64_t step = 0; step < 3; ++step) {
    for (const bool again : {false, true}) {
      const auto run = [&](Layers& which) {
        const at::Tensor x = rows(launch.rank, step);
        (again ? energy(which, x) : which.forward(x).square().sum()).backward();
      };
      module.breaks = step;  // some have been sent
      EXPECT_THAT([&] { run(module); }, ThrowsMessage<std::runtime_error>(HasSubstr("broken off")));
      module.breaks.reset();
      clear(module);
      clear(alone);
      run(module);
      run(alone);
      expect_averages(module, alone, parallel, *ranks, sharded);
    }
  }
}
TEST(GradientPasses, AnExceptionLeavesTheNextPassWhole) {
  testing::on_ranks(2, [](const Launch& launch) { after_exceptions(launch, false); });
}
TEST(GradientPasses, AnExceptionLeavesTheNextPassWholeWhereGradientsAreInShards) {
  testing::on_ranks(2, [](const Launch& launch) { after_exceptions(launch, true); });
}

void passes_inside(const Launch& launch, bool sharded) {
  const auto ranks = testing::connect(launch);
  for (const Uses uses : {Uses{}, Uses{.before = true}, Uses{.after = true}, Uses{.before = true, .after = true}}) {
    Layers module, alone;
    const Parallel parallel(module, ranks, sharded);
    for (int64_t step = 0; step < 2; ++step) {
      clear(module);
      clear(alone);
      for (int64_t part = 0; part <= step; ++part) {  // one backward(), or two that add up
        energy(module, rows(launch.rank, step + part), uses).backward();
        energy(alone, rows(launch.rank, step + part), uses).backward();
      }
      expect_averages(module, alone, parallel, *ranks, sharded);
    }
  }
}
TEST(GradientPasses, PassesInsideAPassAddUp) {
  testing::on_ranks(2, [](const Launch& launch) { passes_inside(launch, false); });
}
TEST(GradientPasses, PassesInsideAPassAddUpWhereGradientsAreInShards) {
  testing::on_ranks(2, [](const Launch& launch) { passes_inside(launch, true); });
}

// The last layer has one gradient first, and one from a pass inside, after which others are sent.
void averages_that_arrive_between(const Launch& launch, bool sharded) {
  const auto ranks = testing::connect(launch);
  Layers module, alone;
  const Parallel parallel(module, ranks, sharded);
  for (Layers* which : {&module, &alone}) {
    which->first_again = kLayers - 1;
    at::Tensor x = which->forward(rows(launch.rank, 1), 0, 2);
    x = Again::apply(x, reinterpret_cast<int64_t>(which));
    which->forward(x, 2, kLayers).square().sum().backward();
  }
  expect_averages(module, alone, parallel, *ranks, sharded);
}
TEST(GradientPasses, AveragesThatArriveBetweenTwoGradientsChangeNeither) {
  testing::on_ranks(2, [](const Launch& launch) { averages_that_arrive_between(launch, false); });
}
TEST(GradientPasses, AveragesThatArriveBetweenTwoGradientsChangeNeitherWhereTheyAreInShards) {
  testing::on_ranks(2, [](const Launch& launch) { averages_that_arrive_between(launch, true); });
}

void used_without_sync(const Launch& launch, bool sharded) {
  const auto ranks = testing::connect(launch);
  Layers module, alone;
  const Parallel parallel(module, ranks, sharded);
  const auto step = [&](Layers& which) {
    {
      const auto wait = parallel.all->no_sync();
      which.forward(rows(launch.rank, 1)).sum().backward();
    }
    at::linear(rows(launch.rank, 2), which.weight(0)).sum().backward();  // the others are not used again
  };
  step(module);
  step(alone);
  expect_averages(module, alone, parallel, *ranks, sharded);
}
TEST(GradientPasses, WhatAddedUpWithoutSyncIsAveragedWhoeverUsesItLast) {
  testing::on_ranks(2, [](const Launch& launch) { used_without_sync(launch, false); });
}
TEST(GradientPasses, WhatAddedUpWithoutSyncIsAveragedWhereGradientsAreInShards) {
  testing::on_ranks(2, [](const Launch& launch) { used_without_sync(launch, true); });
}

TEST(GradientPasses, SyncThatComesTooEarlyIsAnError) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    Layers module;
    const Parallel parallel(module, ranks, /*sharded=*/true);
    energy(module, rows(launch.rank, 1)).backward();
    const auto wait = parallel.all->no_sync();
    EXPECT_THAT([&] { energy(module, rows(launch.rank, 1)).backward(); },
                ThrowsMessage<c10::Error>(HasSubstr("after gradients had been averaged")));
  });
}

void broken_on_one_rank(const Launch& launch, bool sharded) {
  const auto ranks = testing::connect(launch);
  Layers module;
  const Parallel parallel(module, ranks, sharded);
  const auto run = [&] { module.forward(rows(launch.rank, 1)).sum().backward(); };
  module.breaks = launch.rank == 0 ? 1 : 3;  // of rank 0 two had been sent, of rank 1 none
  EXPECT_THAT(run, ThrowsMessage<std::runtime_error>(HasSubstr("broken off")));
  module.breaks.reset();
  clear(module);
  EXPECT_THAT(run, ThrowsMessage<c10::Error>(HasSubstr("expected gradients of the same backward pass")));
}
TEST(GradientPasses, APassThatEndedOnOneRankAloneIsAnError) {
  testing::on_ranks(2, [](const Launch& launch) { broken_on_one_rank(launch, false); });
}
TEST(GradientPasses, APassThatEndedOnOneRankAloneIsAnErrorWhereGradientsAreInShards) {
  testing::on_ranks(2, [](const Launch& launch) { broken_on_one_rank(launch, true); });
}

TEST(GradientPasses, AParameterThatTrainsLaterIsAnError) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    Layers module;
    module.weight(2).requires_grad_(false);
    DistributedDataParallel parallel(module, ranks);
    const auto run = [&] { module.forward(rows(launch.rank, 1)).sum().backward(); };
    run();
    EXPECT_FALSE(module.weight(2).grad().defined());
    module.weight(2).requires_grad_(true);
    EXPECT_THAT(
        run, ThrowsMessage<c10::Error>(HasSubstr(
                 "got 1 parameters that require gradients and that no rank would average, the first of shape [6, 6]")));
    // One that stops is as one that nobody uses.
    module.weight(2).requires_grad_(false);
    module.weight(0).requires_grad_(false);
    clear(module);
    run();
    EXPECT_FALSE(module.weight(0).grad().defined());
    EXPECT_TRUE(module.weight(1).grad().defined());
    {
      const auto wait = parallel.no_sync();
      run();
    }
    module.weight(1).requires_grad_(false);  // after it had added up
    run();
    EXPECT_FALSE(module.weight(1).grad().defined());
  });
}

}  // namespace
}  // namespace plimsoll::shard
