// Threads of OpenMP wait for each other for 0.2 ms before they sleep. libgomp's own default, some 10 ms, holds processors
// that other programs need, and such a thread has used up its turn when there is work. libgomp reads its variable when
// it is loaded, so the program begins anew with it, before its libraries are initialized: milliseconds.
#include <immintrin.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace plimsoll::cli {
namespace {

constexpr char kSpins[] = "GOMP_SPINCOUNT=", kPolicy[] = "OMP_WAIT_POLICY=";
constexpr long kWait = 200'000;  // nanoseconds

bool begins_with(const char* text, const char* name) { return std::strncmp(text, name, std::strlen(name)) == 0; }

long now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// PAUSE, which a waiting thread repeats, takes 40 cycles on one processor and 140 on another.
long spins() {
  constexpr int kPauses = 64;
  long shortest = kWait;
  for (int round = 0; round < 4; ++round) {
    const long start = now();
    for (int i = 0; i < kPauses; ++i) _mm_pause();
    shortest = std::min(shortest, now() - start);
  }
  return kPauses * kWait / std::max(shortest, 1L);
}

// Runs before anything is initialized: only functions of libc that need nothing.
[[maybe_unused]] void begin_with_brief_waits(int, char** arguments, char** environment) {
  if (getauxval(AT_BASE) == 0) return;  // /proc/self/exe is a loader that somebody called
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (begins_with(environment[count], kSpins) || begins_with(environment[count], kPolicy)) return;
  }
  char variable[sizeof(kSpins) + 20] = {};
  std::memcpy(variable, kSpins, sizeof(kSpins) - 1);
  std::to_chars(variable + sizeof(kSpins) - 1, variable + sizeof(variable) - 1, spins());
  char** const extended = static_cast<char**>(__builtin_alloca((count + 2) * sizeof(char*)));
  std::copy_n(environment, count, extended);
  extended[count] = variable;
  extended[count + 1] = nullptr;
  execve("/proc/self/exe", arguments, extended);  // where that is not possible, the program goes on as it is
}

// Sanitizers want to be first.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBegin)(int, char**, char**) = begin_with_brief_waits;
#endif

}  // namespace
}  // namespace plimsoll::cli
