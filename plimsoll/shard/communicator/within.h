// A deadline for calls that know none.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace plimsoll::shard {

// Result or exception of `body`, on a thread of its own, or nothing after `limit`. The thread then stays until the call
// that it waits in returns, so `body` owns all that it uses.
template <class Body>
auto within(std::chrono::milliseconds limit, Body body) -> std::optional<std::invoke_result_t<Body>> {
  std::packaged_task<std::invoke_result_t<Body>()> task(std::move(body));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace plimsoll::shard
