#include "plimsoll/bind/scopes.h"

#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

namespace plimsoll::bind {
namespace {

struct Entry {
  int64_t owner, number;
  std::unique_ptr<Scope> scope;
};

thread_local std::vector<Entry> entries;
thread_local int64_t last_number = 0;
thread_local std::shared_ptr<ops::ScalingStep> waiting;  // of the scope that was left last

// The innermost scope of the owner; none: not of this thread.
std::unique_ptr<Scope> take(int64_t owner) {
  const auto found =
      std::find_if(entries.rbegin(), entries.rend(), [=](const Entry& entry) { return entry.owner == owner; });
  if (found == entries.rend()) return nullptr;
  for (auto inner = found; inner != entries.rbegin();) found->scope->ends_before(*(--inner)->scope);
  std::unique_ptr<Scope> scope = std::move(found->scope);
  entries.erase(std::next(found).base());
  return scope;
}

// 0: none.
int64_t innermost_fp8_scope() {
  const auto found =
      std::find_if(entries.rbegin(), entries.rend(), [](const Entry& entry) { return entry.scope->is_fp8(); });
  return found == entries.rend() ? 0 : found->number;
}

int64_t scopes_of_thread() { return static_cast<int64_t>(entries.size()); }

void finish_left_scope() {
  if (const std::shared_ptr<ops::ScalingStep> step = std::exchange(waiting, nullptr)) step->end_forward();
}

}  // namespace

int64_t enter_scope(int64_t owner, std::unique_ptr<Scope> scope) {
  entries.push_back({.owner = owner, .number = ++last_number, .scope = std::move(scope)});
  return last_number;
}

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("scopes_of_thread() -> int", &scopes_of_thread);
  library.def("innermost_fp8_scope() -> int", &innermost_fp8_scope);
  library.def("finish_left_scope() -> ()", &finish_left_scope);
}

}  // namespace plimsoll::bind

// Function that `with` calls at the end of a scope: the address of None, then objects of Python: the owner, and the
// exception's type, value and traceback. -1: the owner has no scope on this thread; 1: finish_left_scope() is to
// follow.
extern "C" int64_t plimsoll_leave_scope(const void* none, const void* owner, const void* type, const void* /*value*/,
                                        const void* /*traceback*/) noexcept {
  using namespace plimsoll::bind;
  const std::unique_ptr<Scope> scope = take(reinterpret_cast<int64_t>(owner));
  if (scope == nullptr) return -1;
  waiting = scope->leave();
  if (type != none) waiting = nullptr;
  return waiting == nullptr ? 0 : 1;
}

// Ends the innermost scopes of this thread as exceptions would, until `count` are left: what an interrupted entry does.
extern "C" void plimsoll_abandon_scopes(int64_t count) noexcept {
  auto& entries = plimsoll::bind::entries;
  while (static_cast<int64_t>(entries.size()) > count) entries.pop_back();
}
