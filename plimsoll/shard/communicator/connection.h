// Connection of one process to the others of a group: the backend that moves the bytes, the watch over those that may
// be gone, and the errors that name them.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/shard/communicator/peers.h"
#include "plimsoll/shard/communicator/stream_order.h"
#include "plimsoll/shard/communicator/within.h"
#include "plimsoll/watch/profile.h"
#include "plimsoll/watch/transfers.h"

namespace plimsoll::shard {

struct Connection : std::enable_shared_from_this<Connection> {
  using Backend = c10::intrusive_ptr<c10d::Backend>;
  using Store = c10::intrusive_ptr<c10d::Store>;
  using Work = c10::intrusive_ptr<c10d::Work>;

  int64_t rank = 0, size = 1;
  std::string failed;     // what an error says behind the collective's name
  std::string not_known;  // what it says where nobody watches over the ranks
  std::chrono::milliseconds deadline = {};
  bool is_connected = true;
  // For tensors of a device. None: this process is alone.
  std::function<Backend(c10::DeviceType)> backend;
  // The device that tensors on the CPU travel through, where no backend takes them as they are (NCCL alone); or nullopt.
  std::function<std::optional<c10::Device>()> host_detour;
  Store store;                                        // where the ranks meet
  std::shared_ptr<const Peers> peers;                 // none: nobody watches; ends before the store, which it asks
  std::string path;                                   // of what this group leaves there
  std::function<Backend(const Store&)> make_backend;  // another one of the same ranks, which meet in that store

  bool is_alone() const { return backend == nullptr; }
  std::optional<c10::Device> detour(c10::Device of) const {
    return of.is_cpu() && host_detour ? host_detour() : std::nullopt;
  }

  [[noreturn]] void fail(const char* collective, const char* why) const;

  // Result of body(), or an error after `limit`. c10d's calls into a store wait for an answer without a limit, and a
  // process that is stopped gives none.
  template <class Body>
  static auto in_time(const std::string& silent, std::chrono::milliseconds limit, Body body) {
    // Time after the limit in which c10d's own error, which says more, may come.
    constexpr std::chrono::milliseconds kGrace(1000);
    auto result = within(limit + kGrace, std::move(body));
    if (!result) throw std::runtime_error(silent);
    return std::move(*result);
  }

  template <class Body>
  auto guarded(const char* collective, Body body) const {
    try {
      return body();
    } catch (const c10::Error& error) {
      fail(collective, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(collective, error.what());
    }
  }

  // The same ranks with a backend of their own, which is made within `limit`.
  void connect_beside(const std::string& name, std::chrono::milliseconds limit);

  // in_slices: other ranks' word of a failure ends it, too, which Gloo's work survives and other backends' does not.
  void wait(const Work& work, bool in_slices) const;

  // start(Backend&) -> Work. bytes: how many it is about, for the record.
  template <class Start>
  Pending launch_async(const char* collective, c10::DeviceType device, size_t bytes, Start start) const {
    if (is_alone()) return {};
    const auto transfer = watch::Transfer::start(collective, static_cast<double>(bytes));
    bool in_slices = false;
    const Work work = guarded(collective, [&] {
      const Backend to = backend(device);  // not kept: the group may be destroyed before this is waited for
      in_slices = peers != nullptr && to->getBackendName() == "gloo";
      return start(*to);
    });
    if (transfer) work->getFuture()->addCallback([transfer](c10::ivalue::Future&) { transfer->arrive(); });
    return Pending([self = shared_from_this(), collective, in_slices, work, transfer] {
      const watch::Span span(collective);
      const auto wait = [&] { self->guarded(collective, [&] { self->wait(work, in_slices); }); };
      transfer ? transfer->wait_with(wait) : wait();
    });
  }

  // A device may have to do with both tensors until the stream that waits gets there.
  template <class Start>
  ops::Arriving arriving(const char* collective, const at::Tensor& mine, const at::Tensor& result, size_t bytes,
                         Start start) const {
    const auto pending =
        std::make_shared<Pending>(launch_async(collective, result.device().type(), bytes, std::move(start)));
    return ops::Arriving(result, [pending, mine, result] {
      pending->wait();
      use_on_current_stream(mine);
      use_on_current_stream(result);
    });
  }
};

}  // namespace plimsoll::shard
