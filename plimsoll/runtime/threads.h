// The one thread pool: OpenMP's, the runtime that libtorch loaded, so torch.set_num_threads and OMP_NUM_THREADS rule
// here too.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace plimsoll::runtime {

// A reference to a callable `void(int64_t begin, int64_t end)`; valid while the callable lives.
class RangeFunction {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RangeFunction>)
      RangeFunction(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, int64_t begin, int64_t end) {
          (*static_cast<std::remove_reference_t<F>*>(object))(begin, end);
        }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int64_t);
};

// Threads that a parallel_for on this thread would use. One in a forked child whose parent had more threads than the
// one that forked: the pool's do not live there. Results do not depend on it.
int threads();
void set_threads(int count);

// Starts the threads of this thread's pool, which lives as long as it does, before anything needs them: OpenMP ends the
// process where the system refuses one. Throws std::runtime_error in that case.
void start_threads();

// Ends this thread's pool; the next parallel_for here starts another. While pools of the process together have more threads
// than there are CPUs, those that wait for work sleep at once, and waking them takes longer than many a region.
void end_threads();

// Calls body on disjoint ranges that cover [0, count), each but the last a multiple of `grain` long. Each thread begins with a
// contiguous part of its own, the same for equal arguments, so that what it wrote is near it, and goes through that in up to
// eight ranges; whoever is done takes ranges of those that are not: a thread that another program keeps from running holds
// the others up by one range. Serial inside another parallel region, or when count <= grain. The split depends on the
// number of threads: a body whose result must not, computes each output element from its index alone, and sums in
// blocks of fixed size. Exceptions in body end the process.
void parallel_for(int64_t count, int64_t grain, RangeFunction body);

}  // namespace plimsoll::runtime
