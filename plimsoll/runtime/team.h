// Many small steps on the threads of the pool with one fork for all of them: where a step needs what the others have
// done, the team waits, which takes less than another fork.
#pragma once

#include <memory>
#include <type_traits>

namespace plimsoll::runtime {

// One thread's place in a team.
class Team {
 public:
  Team(int index, int size) : index_(index), size_(size) {}
  int index() const { return index_; }
  int size() const { return size_; }
  // Returns when every thread of the team has called it; what they wrote before can then be read. All call it equally
  // often.
  void wait() const;

 private:
  int index_, size_;
};

// A reference to a callable `void(const Team&)`; valid while the callable lives.
class TeamFunction {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, TeamFunction>)
      TeamFunction(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, const Team& team) { (*static_cast<std::remove_reference_t<F>*>(object))(team); }) {}
  void operator()(const Team& team) const { call_(object_, team); }

 private:
  void* object_;
  void (*call_)(void*, const Team&);
};

// Calls body once on each of threads() threads, the calling one as index 0. Kernels that body calls run on its thread
// alone, under the ScopedIsa of the caller. Exceptions in body end the process.
void run_team(TeamFunction body);

}  // namespace plimsoll::runtime
