#include "plimsoll/shard/data_parallel/data_parallel.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>

#include "plimsoll/io/checkpoint_writer.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/shard/communicator/ranks_testing.h"

namespace plimsoll::shard {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kRows = 12;  // of the whole batch

torch::nn::Sequential model_of(int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return torch::nn::Sequential(torch::nn::Linear(9, 17), torch::nn::Tanh(), torch::nn::Linear(17, 5));
}

struct Batch {
  at::Tensor x, y;
};
Batch batch_of(int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  return {at::randn({kRows, 9}), at::randn({kRows, 5})};
}
Batch part(const Batch& batch, const Communicator& ranks) {
  const int64_t rows = kRows / ranks.size();
  return {batch.x.narrow(0, ranks.rank() * rows, rows), batch.y.narrow(0, ranks.rank() * rows, rows)};
}

void backward(torch::nn::Sequential& model, const Batch& batch) {
  at::mse_loss(model->forward(batch.x), batch.y).backward();
}

Tensors gradients(torch::nn::Sequential& model) {
  Tensors result;
  for (const at::Tensor& parameter : model->parameters()) result.push_back(parameter.grad().clone());
  return result;
}

void zero(torch::nn::Sequential& model) {
  for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
}

void expect_same_on_all(const Tensors& mine, const Communicator& ranks) {
  for (const at::Tensor& x : mine) {
    const at::Tensor all = ranks.all_gather(x.unsqueeze(0));
    for (int64_t rank = 0; rank < ranks.size(); ++rank) EXPECT_TRUE(all[rank].equal(all[0]));
  }
}

// Both are means of the same numbers, summed in another order: each of `terms` additions is off by at most 2^-24 of the
// sum of magnitudes, and so are the two divisions.
void expect_near(const Tensors& ours, const Tensors& whole, const Tensors& magnitudes, int64_t terms) {
  for (size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor bound = magnitudes[i] * (std::ldexp(1.0, -23) * static_cast<double>(terms + 4));
    EXPECT_TRUE((ours[i] - whole[i]).abs().le(bound).all().item<bool>()) << i;
  }
}

// The sums of magnitudes that the gradients of a row each come to, over all rows.
Tensors magnitudes_of(torch::nn::Sequential& model, const Batch& batch) {
  Tensors result;
  for (int64_t row = 0; row < kRows; ++row) {
    zero(model);
    backward(model, {batch.x.narrow(0, row, 1), batch.y.narrow(0, row, 1)});
    const Tensors one = gradients(model);
    for (size_t i = 0; i < one.size(); ++i) {
      const at::Tensor term = one[i].abs() / kRows;
      row == 0 ? result.push_back(term) : static_cast<void>(result[i].add_(term));
    }
  }
  return result;
}

void gradients_are_those_of_the_whole_batch(const Launch& launch) {
  const auto ranks = testing::connect(launch);
  torch::nn::Sequential model = model_of(launch.rank), alone = model_of(0);
  DistributedDataParallel parallel(*model, ranks, {.bucket_cap_mb = 0.0005});  // several buckets
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = batch_of(step);
    const Tensors magnitudes = magnitudes_of(alone, batch);
    zero(model);
    zero(alone);
    backward(model, part(batch, *ranks));
    backward(alone, batch);
    // Sums over rows inside, too: 64 terms for each of a product's.
    expect_near(gradients(model), gradients(alone), magnitudes, 64 * kRows);
    expect_same_on_all(gradients(model), *ranks);
  }
}

TEST(DataParallel, GradientsOfTwoRanks) { testing::on_ranks(2, gradients_are_those_of_the_whole_batch); }
TEST(DataParallel, GradientsOfThreeRanks) { testing::on_ranks(3, gradients_are_those_of_the_whole_batch); }
TEST(DataParallel, GradientsOfFourRanks) { testing::on_ranks(4, gradients_are_those_of_the_whole_batch); }

TEST(DataParallel, OneRankChangesNothing) {
  torch::nn::Sequential model = model_of(1), alone = model_of(1);
  DistributedDataParallel parallel(*model, Communicator::connect({}));
  backward(model, batch_of(0));
  backward(alone, batch_of(0));
  const Tensors ours = gradients(model), theirs = gradients(alone);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(theirs[i]));
}

// Integers, whose sums are exact.
TEST(DataParallel, AveragesAndNeverSums) {
  testing::on_ranks(4, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
    DistributedDataParallel parallel(*layer, ranks);
    layer->forward(at::full({1, 1}, static_cast<double>(4 * launch.rank))).sum().backward();
    EXPECT_EQ(layer->weight.grad().item<float>(), 6);
  });
}

TEST(DataParallel, NoSyncAddsUpOnEachRankByItself) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
    DistributedDataParallel parallel(*layer, ranks);
    const auto step = [&](double x) { layer->forward(at::full({1, 1}, x)).sum().backward(); };
    {
      const auto scope = parallel.no_sync();
      step(static_cast<double>(launch.rank + 1));
      EXPECT_EQ(layer->weight.grad().item<float>(), static_cast<float>(launch.rank + 1));
    }
    step(2);
    EXPECT_EQ(layer->weight.grad().item<float>(), 3.5);  // (1 + 2 + 2 + 2) / 2
  });
}

TEST(DataParallel, ParametersThatOnlySomeRanksUse) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    torch::nn::ModuleList layers;
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
    const auto layer = [&](size_t i) { return layers->ptr<torch::nn::LinearImpl>(i); };
    DistributedDataParallel parallel(*layers, ranks);
    at::Tensor x = at::full({1, 1}, 2.0);
    at::Tensor sum = layer(0)->forward(x);
    if (launch.rank == 1) sum = sum + layer(1)->forward(x);
    sum.sum().backward();
    EXPECT_EQ(layer(0)->weight.grad().item<float>(), 2);
    EXPECT_EQ(layer(1)->weight.grad().item<float>(), 1);
    EXPECT_FALSE(layer(2)->weight.grad().defined());
  });
}

TEST(DataParallel, NarrowParametersAreSummedInFp32) {
  testing::on_ranks(3, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
    layer->to(at::kBFloat16);
    DistributedDataParallel parallel(*layer, ranks);
    // 256 + 1 + 1 in BF16 stays 256 after each addition; its third in FP32 is 86.
    const double x = launch.rank == 0 ? 256 : 1;
    layer->forward(at::full({1, 1}, x, at::kBFloat16)).sum().backward();
    EXPECT_EQ(layer->weight.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(layer->weight.grad().item<float>(), 86);
  });
}

// As three ranks saved it, whose sums were divided by 2 before and by 1.5 after.
TEST(DataParallel, WhatAnotherNumberOfRanksLeftOutIsKept) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    torch::nn::Linear layer(40, 10);
    DistributedDataParallel parallel(*layer, ranks, {.compression = Compression::kBf16});
    const io::TemporaryDirectory run;
    const io::CheckpointPlace place{.run = run.path(), .step = 1};
    io::begin_checkpoint(place);
    io::Manifest manifest{.step = 1, .world_size = 3, .files = {}, .sections = {}};
    for (int64_t rank = 0; rank < 3; ++rank) {
      std::vector<io::TensorPiece> pieces;
      for (const auto& item : layer->named_parameters()) {
        const at::Tensor ones = at::ones_like(item.value().detach());
        pieces.push_back(io::whole_piece(item.key() + ".values." + std::to_string(rank), ones * (rank + 1)));
        if (rank == 2) pieces.push_back(io::whole_piece(item.key() + ".sums", ones * 10));
      }
      manifest.merge(io::write_pieces(place, {{"left_out", pieces}}, {.rank = rank, .world_size = 3}));
    }
    io::commit_checkpoint(place, manifest, {});
    parallel.restore_left_out(io::CheckpointReader(place.final_name()), "left_out");
    int64_t sums = 0;
    for (const io::TensorPiece& piece : parallel.left_out()) {
      const bool is_sum = piece.name.ends_with(".sums");
      EXPECT_TRUE(piece.values.eq(is_sum ? 10 + (1 + 2 + 3) / 1.5 : 0).all().item<bool>()) << piece.name;
      if (is_sum) sums += piece.values.numel();
    }
    const at::Tensor all = ranks->all_gather(at::full({1}, sums));
    EXPECT_EQ(all.sum().item<int64_t>(), 410);
  });
}

TEST(DataParallel, AnotherModelOnARankIsAnErrorOnAll) {
  testing::on_ranks(3, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    torch::nn::Linear layer(launch.rank == 2 ? 3 : 4, 1);
    try {
      DistributedDataParallel parallel(*layer, ranks);
      FAIL() << "expected an error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), ::testing::HasSubstr("got others than rank 0's on rank 2"));
    }
  });
}

}  // namespace
}  // namespace plimsoll::shard
