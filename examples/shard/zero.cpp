// ZeRO-2 in fp16: each parameter's optimizer state and gradient live on one rank, and all ranks share the loss scale.
// Any number of ranks loads the checkpoint.
//
//   .venv/bin/torchrun --no-python --nproc-per-node 2 build/bin/example_shard_zero
#include <ATen/ops/mse_loss.h>
#include <torch/nn/modules/activation.h>

#include <cstdio>
#include <filesystem>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/shard/checkpoint/checkpoint_saver.h"
#include "plimsoll/shard/data_parallel/sharded_data_parallel.h"
#include "plimsoll/shard/optimizer/sharded_grad_scaler.h"
#include "plimsoll/shard/optimizer/sharded_optimizer.h"

using namespace plimsoll;

namespace {

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Sequential& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

}  // namespace

int main() {
  const std::shared_ptr<const shard::Communicator> ranks =
      shard::Communicator::connect(shard::launch_from_environment());
  problem::Data data;
  torch::nn::Sequential model = problem::model(1);
  shard::ShardedOptimizer optimizer(optim::decay_groups(model->named_parameters(), torch::optim::AdamWOptions(3e-3)),
                                    ranks);
  shard::ShardedDataParallel parallel(*model, optimizer, ranks);
  shard::ShardedGradScaler scaler(ranks);
  torch::manual_seed(static_cast<uint64_t>(100 + ranks->rank()));  // each rank has its own part of the data
  std::vector<double> losses;
  for (int step = 0; step < 200; ++step) {
    const problem::Batch batch = data.next(32);
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);
      loss = at::mse_loss(model->forward(batch.input), batch.target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer, {.max_norm = 1.0});  // max_norm is that of all ranks' gradients
    scaler.update();
    losses.push_back(loss.item<double>());
  }

  const std::filesystem::path run = std::filesystem::temp_directory_path() / "plimsoll-example-zero";
  {
    shard::CheckpointSaver saver({.run = run, .asynchronous = true}, ranks->split("checkpoints"), ranks->rank());
    saver.save({.step = 200,
                .sections = {{"model", shard::share_of_replicated(tensors_of(model), *ranks, ranks->rank())},
                             {"optimizer", io::whole_pieces(optimizer.state_dict())}},
                .state = {{"grad_scaler", scaler.state_dict()}}});
    saver.wait();
  }
  const auto latest = shard::open_latest_checkpoint(run, *ranks, ranks->rank());
  for (const auto& [name, tensor] : tensors_of(model)) {
    TORCH_CHECK(latest->reader.read("model", name).equal(tensor), "expected what was saved, got another ", name);
  }
  if (ranks->rank() == 0) problem::report("zero2", losses);
}
