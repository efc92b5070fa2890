#include "plimsoll/kernels/limits/memory_pass.h"

#define PLIMSOLL_LOOPS kMemoryLoopsPortable
#include "plimsoll/kernels/limits/memory_loops.inc"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kWord = 64;

const MemoryLoops& loops() {
  if (runtime::isa() >= runtime::Isa::kAvx512) return kMemoryLoopsAvx512;
  if (runtime::isa() >= runtime::Isa::kAvx2) return kMemoryLoopsAvx2;
  return kMemoryLoopsPortable;
}

}  // namespace

void read_memory(const void* from, int64_t bytes) { loops().read(static_cast<const float*>(from), bytes / kWord); }
void write_memory(void* to, int64_t bytes) { loops().write(static_cast<float*>(to), bytes / kWord); }
void copy_memory(void* to, const void* from, int64_t bytes) {
  loops().copy(static_cast<float*>(to), static_cast<const float*>(from), bytes / kWord);
}
void rewrite_memory(void* at, int64_t bytes) { loops().rewrite(static_cast<float*>(at), bytes / kWord); }

}  // namespace plimsoll::kernels
