// ThreadSanitizer cannot see libgomp's fork, join and barrier (the library is not instrumented), so every parallel
// region looks like a race. This stands before libgomp's entries and states their orders. Built with -fsanitize=thread
// only.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

namespace {

using Body = void (*)(void*);

struct Region {
  Body body;
  void* data;
  char fork = 0, join = 0;  // their addresses name the two orders
};

__attribute__((no_sanitize("thread"))) void run(void* argument) {
  Region* region = static_cast<Region*>(argument);
  __tsan_acquire(&region->fork);
  region->body(region->data);
  __tsan_release(&region->join);
}

}  // namespace

// The signature is libgomp's (libgomp_g.h).
extern "C" __attribute__((no_sanitize("thread"))) void GOMP_parallel(Body body, void* data, unsigned threads,
                                                                     unsigned flags) {
  using Parallel = void (*)(Body, void*, unsigned, unsigned);
  static const Parallel next = reinterpret_cast<Parallel>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data};
  __tsan_release(&region.fork);
  next(run, &region, threads, flags);
  __tsan_acquire(&region.join);
}

extern "C" __attribute__((no_sanitize("thread"))) void GOMP_barrier() {
  using Barrier = void (*)();
  static const Barrier next = reinterpret_cast<Barrier>(dlsym(RTLD_NEXT, "GOMP_barrier"));
  static char barrier = 0;
  __tsan_release(&barrier);
  next();
  __tsan_acquire(&barrier);
}
