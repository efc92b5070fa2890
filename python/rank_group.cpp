#include "python/rank_group.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "plimsoll/ops/scaling/rank_amaxes.h"
#include "plimsoll/shard/communicator/peers.h"
#include "plimsoll/shard/communicator/within.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::python {
namespace {

// Boxed, because the type of a group in torch's schemas changes with its version.
at::Tensor call(const char* op, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
  return stack.at(0).toTensor();
}

using SharedPeers = std::shared_ptr<const shard::Peers>;

// The peers of a group whose ranks meet in a TCPStore, once for it; elsewhere none: each beat would make a FileStore's file
// longer.
SharedPeers peers_of(const std::string& name) {
  static std::mutex mutex;
  static std::map<const c10d::ProcessGroup*, std::weak_ptr<const shard::Peers>> known;
  const c10::intrusive_ptr<c10d::ProcessGroup> group = c10d::resolve_process_group(name);
  c10::intrusive_ptr<c10d::Store> store = group->getStore();
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  const auto bare = prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
  if (group->getSize() == 1 || dynamic_cast<c10d::TCPStore*>(bare.get()) == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const shard::Peers>& kept = known[group.get()];
  SharedPeers peers = kept.lock();
  if (peers == nullptr) {
    // A process that is stopped leaves whoever connects to its store waiting without a limit.
    const auto connected = shard::within(store->getTimeout(), [store] { return store->clone(); });
    if (!connected) {
      C10_THROW_ERROR(DistBackendError, "the process group '" + name + "': its store, which rank 0 holds unless " +
                                            "torchrun does, does not answer; rank 0 has ended or stands still");
    }
    const auto own = c10::make_intrusive<c10d::PrefixStore>("plimsoll/" + name, *connected);
    // Rank 0 has the store, unless torchrun does.
    kept = peers = std::make_shared<const shard::Peers>(own, group->getRank(), group->getSize(), group->getRank() == 0);
  }
  return peers;
}

class NamedGroup : public ops::ByteRankGroup {
 public:
  NamedGroup(std::string_view name, int64_t size, SharedPeers peers = nullptr)
      : name_(name), size_(size), peers_(std::move(peers)) {}

  int64_t size() const override { return size_; }

  void all_reduce_max(std::span<int32_t> values) const override {
    const auto size = static_cast<int64_t>(values.size());
    const at::Tensor mine = at::from_blob(values.data(), {size}, at::kInt);
    mine.copy_(run("_c10d_functional::all_reduce", {mine, "max", name_}, values.size_bytes()));
  }

  ops::Arriving start_gather(const at::Tensor& mine, const at::Tensor& all) const override {
    return start("_c10d_functional::all_gather_into_tensor_out", {mine, size_, name_, all},
                 static_cast<double>(mine.nbytes()));
  }

  ops::Arriving start_exchange(const at::Tensor& parts) const override {
    const std::vector<c10::SymInt> sizes(static_cast<size_t>(size_), parts.numel() / size_);
    return start("_c10d_functional::all_to_all_single", {parts, sizes, sizes, name_},
                 static_cast<double>(parts.nbytes()));
  }

 private:
  at::Tensor run(const char* op, torch::jit::Stack arguments, size_t bytes) const {
    return start(op, std::move(arguments), static_cast<double>(bytes)).take();
  }

  // The operators keep their inputs until they are waited for.
  ops::Arriving start(const char* op, torch::jit::Stack arguments, double bytes) const {
    const at::Tensor result = guarded(op, [&] { return call(op, std::move(arguments)); });
    return ops::Arriving(result, [this, op, result, bytes] {
      const watch::Span span(op, {.bytes = bytes});
      guarded(op, [&] { return call("_c10d_functional::wait_tensor", {result}); });
    });
  }

  template <class Body>
  at::Tensor guarded(const char* op, Body body) const {
    const at::AutoDispatchBelowADInplaceOrView no_gradient;
    try {
      return body();
    } catch (const c10::Error& error) {
      fail(op, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(op, error.what());
    }
  }

  [[noreturn]] void fail(const char* op, const char* why) const {
    std::string missing = peers_ == nullptr ? "" : peers_->find_missing();
    if (missing.empty()) missing = "a rank may have ended, or not come here";
    C10_THROW_ERROR(DistBackendError, std::string(op) + " over the process group '" + name_ + "' of " +
                                          std::to_string(size_) + " ranks failed; " + missing + ": " + why);
  }

  std::string name_;
  int64_t size_;
  SharedPeers peers_;
};

}  // namespace

std::shared_ptr<const ops::RankGroup> rank_group(std::string_view name, int64_t size) {
  TORCH_CHECK_VALUE(size > 1, "tp_size: expected a group of two ranks or more, got ", size);
  return std::make_shared<const NamedGroup>(name, size);
}

std::shared_ptr<const ops::ByteRankGroup> shard_group(std::string_view name, int64_t size) {
  TORCH_CHECK_VALUE(size >= 1, "shard: expected a group of one rank or more, got ", size);
  static std::mutex mutex;
  static std::map<std::pair<std::string, int64_t>, std::weak_ptr<const ops::ByteRankGroup>> groups;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const ops::ByteRankGroup>& kept = groups[{std::string(name), size}];
  std::shared_ptr<const ops::ByteRankGroup> group = kept.lock();
  if (group == nullptr) kept = group = std::make_shared<const NamedGroup>(name, size, peers_of(std::string(name)));
  return group;
}

std::shared_ptr<const ops::AmaxReduction> amax_reduction_over(std::string_view name, int64_t size) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int64_t>, std::weak_ptr<const ops::AmaxReduction>> reductions;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const ops::AmaxReduction>& kept = reductions[{std::string(name), size}];
  std::shared_ptr<const ops::AmaxReduction> reduction = kept.lock();
  if (reduction == nullptr) kept = reduction = ops::amax_reduction(rank_group(name, size));
  return reduction;
}

}  // namespace plimsoll::python
