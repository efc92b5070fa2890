#include "plimsoll/shard/engine/blind_group_testing.h"

#include <ATen/ops/empty.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "plimsoll/shard/communicator/gloo.h"
#include "plimsoll/shard/engine/blind_device_testing.h"

namespace plimsoll::shard::testing {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using Gloo = c10::intrusive_ptr<c10d::Backend>;

// A tensor of the device, of which this keeps an address alone, and a copy on the CPU.
struct Copy {
  explicit Copy(const at::Tensor& of) : address(of.const_data_ptr()) {
    TORCH_CHECK(of.device() == kBlindDevice && of.is_contiguous(), "blind group: expected a contiguous tensor on ",
                kBlindDevice, ", got one on ", of.device());
    there = at::empty(of.sizes(), at::TensorOptions(of.scalar_type()));
    if (there.nbytes() > 0) std::memcpy(there.mutable_data_ptr(), bytes_behind(address), there.nbytes());
    before = there.clone();
  }
  void write_back() const {
    if (there.nbytes() > 0) std::memcpy(bytes_behind(address), there.const_data_ptr(), there.nbytes());
  }
  void expect_unchanged() const {
    const bool same =
        before.nbytes() == 0 || std::memcmp(bytes_behind(address), before.const_data_ptr(), before.nbytes()) == 0;
    TORCH_CHECK(same, "blind group: a tensor was written before its collective was waited for");
  }

  const void* address;
  at::Tensor there, before;
};

struct BlindWork final : c10d::Work {
  BlindWork(WorkPointer its_work, std::vector<Copy> its_inputs, Copy its_result)
      : work(std::move(its_work)), inputs(std::move(its_inputs)), result(std::move(its_result)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    work->wait(timeout);
    for (const Copy& input : inputs) input.expect_unchanged();
    result.write_back();
    return true;
  }
  bool isCompleted() override { return work->isCompleted(); }

  WorkPointer work;
  std::vector<Copy> inputs;
  Copy result;
};

class BlindBackend final : public c10d::Backend {
 public:
  explicit BlindBackend(Gloo gloo) : c10d::Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "blind"; }

  WorkPointer broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    Copy copy(tensors.front());
    std::vector<at::Tensor> there = {copy.there};
    return started(gloo_->broadcast(there, options), {}, std::move(copy));
  }
  WorkPointer allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    Copy copy(tensors.front());
    std::vector<at::Tensor> there = {copy.there};
    return started(gloo_->allreduce(there, options), {}, std::move(copy));
  }
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    Copy from(input), to(output);
    WorkPointer work = gloo_->_allgather_base(to.there, from.there, options);
    return started(std::move(work), {std::move(from)}, std::move(to));
  }
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                            std::vector<int64_t>& parts, const c10d::AllToAllOptions& options) override {
    Copy from(input), to(output);
    WorkPointer work = gloo_->alltoall_base(to.there, from.there, received, parts, options);
    return started(std::move(work), {std::move(from)}, std::move(to));
  }

 private:
  static WorkPointer started(WorkPointer work, std::vector<Copy> inputs, Copy result) {
    return c10::make_intrusive<BlindWork>(std::move(work), std::move(inputs), std::move(result));
  }

  Gloo gloo_;
};

}  // namespace

std::shared_ptr<Communicator> blind_group(const Launch& launch, const std::string& name) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.waitWorkers = false;
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(name, c10::make_intrusive<c10d::TCPStore>(launch.address, options));
  const Gloo backend = gloo(store, launch.rank, launch.world_size, launch.address, std::chrono::minutes(2));
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(launch.rank),
                                                             static_cast<int>(launch.world_size));
  group->setBoundDeviceId(kBlindDevice);
  group->setBackend(kBlind, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<BlindBackend>(backend));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(name);
  c10d::register_process_group(name, group);
  // The registry keeps no group.
  const auto kept =
      std::make_shared<std::pair<decltype(group), std::shared_ptr<Communicator>>>(group, Communicator::over(name));
  return {kept, kept->second.get()};
}

}  // namespace plimsoll::shard::testing
