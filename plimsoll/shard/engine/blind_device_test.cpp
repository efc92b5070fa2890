// FullyShardedDataParallel on a device whose memory the host cannot read: the bits of the CPU, over a backend for that
// device alone.
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/shard/average/exact_sum.h"
#include "plimsoll/shard/average/exact_sum_on_device.h"
#include "plimsoll/shard/communicator/gather_texts.h"
#include "plimsoll/shard/communicator/ranks_testing.h"
#include "plimsoll/shard/engine/blind_device_testing.h"
#include "plimsoll/shard/engine/blind_group_testing.h"
#include "plimsoll/shard/engine/fully_sharded.h"
#include "plimsoll/shard/engine/tensor_memory.h"

namespace plimsoll::shard {
namespace {

using testing::blind_counts;
using testing::kBlindDevice;

constexpr int64_t kSide = 7;

// Torch's own cannot be moved to this device.
struct Layer : torch::nn::Module {
  explicit Layer(at::Device device) {
    weight = register_parameter("weight", at::randn({kSide, kSide}).div_(kSide).to(device));
    bias = register_parameter("bias", at::randn({kSide}).div_(kSide).to(device));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

  at::Tensor weight, bias;
};

struct Trained {
  std::vector<at::Tensor> masters, losses;  // whole, on the CPU
  double norm = 0, exact = 0;               // of the last gradients
  int64_t reads_of_passes = 0, reads_of_norm = 0;
  int64_t gathered_bytes = 0;  // that are left after a forward pass
};

// Three layers, two of them units of their own; three steps, of which the second one has two passes where that is
// allowed.
Trained train(const std::shared_ptr<const Communicator>& ranks, at::Device device, const FullyShardedOptions& options) {
  torch::manual_seed(5);
  torch::nn::ModuleList layers;
  for (int i = 0; i < 3; ++i) layers->push_back(std::make_shared<Layer>(device));
  FullyShardedDataParallel sharded(*layers, {layers->ptr(1), layers->ptr(2)}, ranks, options);
  std::vector<at::Tensor> leaves;
  for (const auto& [name, leaf] : sharded.parameters()) leaves.push_back(leaf);
  torch::optim::SGD optimizer(leaves, torch::optim::SGDOptions(0.1).momentum(0.9));
  const at::ScalarType dtype = options.compute_dtype.value_or(at::kFloat);
  const auto layer = [&](size_t i, const at::Tensor& x) { return layers->ptr<Layer>(i)->forward(x); };
  Trained result;
  const auto pass = [&](int64_t step) {
    torch::manual_seed(100 * ranks->rank() + step);
    const at::Tensor x = at::randn({4, kSide}).to(dtype).to(device);
    const int64_t before = blind_counts().reads;
    const at::Tensor loss = sharded.forward([&] {
      at::Tensor hidden = layer(0, x);
      for (size_t i = 1; i < 3; ++i) hidden = sharded.run(i, [&] { return layer(i, hidden).tanh(); });
      return hidden.to(at::kFloat).square().sum();
    });
    result.gathered_bytes = 0;
    for (const at::Tensor& memory : sharded.memory()) {
      result.gathered_bytes += static_cast<int64_t>(memory.storage().nbytes());
    }
    loss.backward();
    result.reads_of_passes += blind_counts().reads - before;
    result.losses.push_back(loss.detach().cpu());
  };
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    if (step == 1 && options.ordered_passes == 0) {
      const auto no_sync = sharded.no_sync();
      pass(10);
    }
    pass(step);
    result.norm = sharded.grad_norm(3);
    const int64_t before = blind_counts().reads;
    result.exact = options.ordered_passes > 0 ? sharded.clip_grad_norm_(0.5) : 0;
    result.reads_of_norm = blind_counts().reads - before;
    optimizer.step();
  }
  for (const io::TensorPiece& piece : sharded.pieces()) EXPECT_EQ(piece.values.device(), device);
  const auto whole = sharded.full_parameters();
  for (const at::Tensor& parameter : layers->parameters()) {
    EXPECT_EQ(parameter.device(), device);
    result.masters.push_back(parameter.detach().cpu());
  }
  return result;
}

void expect_same_bits(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(expected[i])) << i;
}

void trains_as_on_the_cpu(const FullyShardedOptions& options) {
  testing::on_ranks(2, [&](const Launch& launch) {
    const auto over_gloo = testing::connect(launch);
    const auto blind = testing::blind_group(launch, "blind");
    const Trained cpu = train(over_gloo, at::kCPU, options), ours = train(blind, kBlindDevice, options);
    expect_same_bits(ours.losses, cpu.losses);
    expect_same_bits(ours.masters, cpu.masters);
    EXPECT_EQ(ours.exact, cpu.exact);
    // Six sums of positive numbers at most on each rank, in another order, and a root, in fp64.
    EXPECT_NEAR(ours.norm, cpu.norm, 0x1p-49 * cpu.norm);
    EXPECT_EQ(ours.reads_of_passes, 0);
    EXPECT_EQ(ours.reads_of_norm, options.ordered_passes > 0 ? 1 : 0);
    EXPECT_EQ(ours.gathered_bytes, cpu.gathered_bytes);
    over_gloo->barrier();
  });
}

TEST(BlindDevice, TrainsAsOnTheCpu) { trains_as_on_the_cpu({}); }
TEST(BlindDevice, TrainsInBf16AsOnTheCpu) {
  trains_as_on_the_cpu({.compute_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16});
}
TEST(BlindDevice, TrainsUnflattenedAsOnTheCpu) {
  trains_as_on_the_cpu({.reshard_after_forward = false, .flatten_parameters = false});
}
TEST(BlindDevice, TrainsInOneOrderAsOnTheCpu) { trains_as_on_the_cpu({.prefetch = false, .ordered_passes = 1}); }

TEST(BlindDevice, OneRankAloneTrainsAsOnTheCpu) {
  const auto alone = Communicator::connect({});
  const Trained cpu = train(alone, at::kCPU, {}), ours = train(alone, kBlindDevice, {});
  expect_same_bits(ours.losses, cpu.losses);
  expect_same_bits(ours.masters, cpu.masters);
}

TEST(BlindDevice, MemoryThatGoesAndComesIsTheDevices) {
  const at::Tensor tensor = at::zeros({100}, kBlindDevice), view = tensor.narrow(0, 10, 5);
  const int64_t bytes = blind_counts().bytes;
  free_memory(tensor);
  EXPECT_EQ(blind_counts().bytes, bytes - 400);
  EXPECT_EQ(tensor.storage().data_ptr().device(), kBlindDevice);
  allocate_memory(tensor);
  EXPECT_EQ(blind_counts().bytes, bytes);
  EXPECT_EQ(tensor.storage().data_ptr().device(), kBlindDevice);
  tensor.fill_(3);
  EXPECT_EQ(view.sum().item<float>(), 15);
}

TEST(BlindDeviceDeathTest, EndsWhoeverReadsAPointerOnTheHost) {
  const at::Tensor tensor = at::zeros({1}, kBlindDevice);
  EXPECT_DEATH(static_cast<void>(*static_cast<const volatile float*>(tensor.const_data_ptr())), "");
}

TEST(BlindDevice, StreamsTakeTurns) {
  const at::Tensor tensor = at::zeros({4}, kBlindDevice);
  StreamOrder order;
  const auto events = [] { return std::pair(blind_counts().waits, blind_counts().recorded); };
  const auto [waits, recorded] = events();
  order.take_turn(tensor);
  order.take_turn(tensor);
  EXPECT_EQ(events(), std::pair(waits, recorded));
  {
    const testing::OnStream other(3);
    order.take_turn(tensor);
    order.take_turn(tensor);
    EXPECT_EQ(events(), std::pair(waits + 1, recorded + 1));
  }
  order.take_turn(tensor);
  EXPECT_EQ(events(), std::pair(waits + 2, recorded + 2));
}

// A group without a backend for the CPU.
TEST(BlindDevice, AReadOfTheHostWaitsForAllStreams) {
  at::Tensor amax;
  {
    const testing::OnStream stream(3);
    amax = at::full({1}, 3.0f).to(kBlindDevice);
  }
  const int64_t before = blind_counts().ends;
  EXPECT_THAT(ops::read_on_host({amax, amax}), ::testing::ElementsAre(3.0f, 3.0f));
  EXPECT_EQ(blind_counts().ends, before + 1);
  ops::read_on_host({at::full({1}, 3.0f)});
  EXPECT_EQ(blind_counts().ends, before + 1);
}

TEST(BlindDevice, TensorsOnTheCpuTravelThroughTheDevice) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto over_gloo = testing::connect(launch);
    const auto ranks = testing::blind_group(launch, "blind");
    const auto mine = static_cast<float>(ranks->rank() + 1);
    const at::Tensor sum = at::full({3}, mine), first = sum.clone(), owned = sum.clone();
    ranks->all_reduce_(sum).wait();
    ranks->broadcast_(first, 1).wait();
    ranks->reduce_(owned, 0).wait();
    EXPECT_TRUE(sum.equal(at::full({3}, 3.0f)));
    EXPECT_TRUE(first.equal(at::full({3}, 2.0f)));
    EXPECT_TRUE(ranks->rank() != 0 || owned.equal(sum));
    std::vector<int32_t> values = {static_cast<int32_t>(ranks->rank()), 5};
    ranks->all_reduce_max(values);
    EXPECT_THAT(values, ::testing::ElementsAre(1, 5));
    EXPECT_THAT(gather_texts(*ranks, std::string(static_cast<size_t>(1 + ranks->rank()), 'x')),
                ::testing::ElementsAre("x", "xx"));
    EXPECT_TRUE(ranks->all_reduce(at::full({5}, mine)).equal(at::full({5}, 3.0f)));
    EXPECT_TRUE(ranks->all_reduce(at::full({5}, mine).to(kBlindDevice)).cpu().equal(at::full({5}, 3.0f)));
    ranks->barrier();
    over_gloo->barrier();
  });
}

TEST(BlindDevice, ExactSumsOfSquaresAreTheHosts) {
  torch::manual_seed(9);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const at::Tensor spread = at::randn({3000}) * at::randn({3000}).mul(20).exp();  // from subnormal numbers to 1e30
  for (const at::Tensor& values :
       {spread, at::zeros({0}), at::zeros({5}), at::full({2}, 0x1p-149f), at::full({3}, -3.0e38f), at::full({1}, kInf),
        at::full({2}, std::numeric_limits<float>::quiet_NaN())}) {
    ExactSumOfSquares sum;
    sum.add({values.const_data_ptr<float>(), static_cast<size_t>(values.numel())});
    const auto& words = sum.words();
    const at::Tensor ours =
        at::zeros({static_cast<int64_t>(words.size())}, at::TensorOptions(kBlindDevice).dtype(at::kLong));
    add_squares(ours, values.to(kBlindDevice));
    const at::Tensor read = ours.cpu();
    EXPECT_TRUE(std::equal(words.begin(), words.end(), read.const_data_ptr<int64_t>())) << values;
  }
}

TEST(BlindDevice, WhatIsNotThereYetIsOneError) {
  const auto alone = Communicator::connect({});
  const auto wrap = [&](const FullyShardedOptions& options, bool mixes) {
    torch::nn::ModuleList layers;
    layers->push_back(std::make_shared<Layer>(mixes ? at::kCPU : kBlindDevice));
    layers->push_back(std::make_shared<Layer>(kBlindDevice));
    FullyShardedDataParallel(*layers, {}, alone, options);
  };
  using ::testing::HasSubstr;
  using ::testing::ThrowsMessage;
  EXPECT_THAT([&] { wrap({.offload_folder = std::filesystem::temp_directory_path()}, false); },
              ThrowsMessage<c10::Error>(HasSubstr("expected parameters on the CPU where they wait in a folder")));
  EXPECT_THAT([&] { wrap({}, true); },
              ThrowsMessage<c10::Error>(HasSubstr("on one device, got 0.weight on cpu and 1.weight")));
  const auto state = std::make_shared<ops::LinearState>("layer");
  EXPECT_THAT([&] { wrap({.layer_of = [&](const std::string&) { return state; }}, false); },
              ThrowsMessage<c10::Error>(HasSubstr("which travels as codes, on the CPU")));
}

}  // namespace
}  // namespace plimsoll::shard
