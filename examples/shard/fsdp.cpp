// Fully sharded training in fp16: each rank has a part of parameters, gradients and AdamW's states, and a layer is
// whole only while it computes. All ranks share the loss scale. Any number of ranks loads the checkpoint.
//
//   .venv/bin/torchrun --no-python --nproc-per-node 2 build/bin/example_shard_fsdp
#include <ATen/ops/gelu.h>
#include <ATen/ops/mse_loss.h>

#include <filesystem>

#include "examples/amp/problem.h"
#include "plimsoll/shard/checkpoint/checkpoint_saver.h"
#include "plimsoll/shard/engine/fully_sharded.h"
#include "plimsoll/shard/optimizer/sharded_adamw.h"
#include "plimsoll/shard/optimizer/sharded_grad_scaler.h"

using namespace plimsoll;

namespace {

// The student: its two large layers are units, whose forward passes go through run(); the norm belongs to the
// outermost unit.
struct Student {
  torch::nn::Sequential layers = problem::model(1);
  shard::FullyShardedDataParallel sharded;

  explicit Student(const std::shared_ptr<const shard::Communicator>& ranks)
      : sharded(*layers, {layers->children()[0], layers->children()[3]}, ranks, {.mixed_precision = true}) {}

  at::Tensor forward(const at::Tensor& input) {
    return sharded.forward([&] {
      at::Tensor x = sharded.run(1, [&] { return layers[0]->as<torch::nn::Linear>()->forward(input.to(at::kHalf)); });
      x = at::gelu(layers[1]->as<torch::nn::LayerNorm>()->forward(x));
      return sharded.run(2, [&] { return layers[3]->as<torch::nn::Linear>()->forward(x); });
    });
  }
};

}  // namespace

int main() {
  const std::shared_ptr<const shard::Communicator> ranks =
      shard::Communicator::connect(shard::launch_from_environment());
  problem::Data data;
  Student student(ranks);
  shard::ShardedAdamW optimizer({{student.sharded.parameters(), torch::optim::AdamWOptions(3e-3)}}, ranks);
  shard::ShardedGradScaler scaler(ranks);
  torch::manual_seed(static_cast<uint64_t>(100 + ranks->rank()));  // each rank has its own part of the data
  std::vector<double> losses;
  for (int step = 0; step < 200; ++step) {
    const problem::Batch batch = data.next(32);
    optimizer.zero_grad();
    const at::Tensor loss = at::mse_loss(student.forward(batch.input).to(at::kFloat), batch.target);
    scaler.scale(loss).backward();
    scaler.step(optimizer, {.max_norm = 1.0});  // the norm of all ranks' gradients; an Inf makes all ranks skip
    scaler.update();
    losses.push_back(loss.item<double>());
  }

  const std::filesystem::path run = std::filesystem::temp_directory_path() / "plimsoll-example-fsdp";
  shard::CheckpointSaver saver({.run = run}, ranks, ranks->rank());
  saver.save({.step = 200,
              .sections = {{"model", student.sharded.pieces()}},
              .state = {{"grad_scaler", scaler.state_dict()}}});
  const auto latest = shard::open_latest_checkpoint(run, *ranks, ranks->rank());
  const auto whole = student.sharded.full_parameters();
  for (const auto& item : student.layers->named_parameters()) {
    TORCH_CHECK(latest->reader.read("model", item.key()).equal(item.value()), "expected what was saved, got another ",
                item.key());
  }
  if (ranks->rank() == 0) problem::report("fsdp", losses);
}
