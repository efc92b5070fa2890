#include "plimsoll/kernels/limits/memory_pass.h"

#include "plimsoll/kernels/limits/memory_loops.h"
#include "plimsoll/runtime/pick.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kWord = 64;

const MemoryLoops& loops() { return runtime::pick(kMemoryLoopsPortable, kMemoryLoopsAvx2, kMemoryLoopsAvx512); }

}  // namespace

void read_memory(const void* from, int64_t bytes) { loops().read(static_cast<const float*>(from), bytes / kWord); }
void write_memory(void* to, int64_t bytes) { loops().write(static_cast<float*>(to), bytes / kWord); }
void copy_memory(void* to, const void* from, int64_t bytes) {
  loops().copy(static_cast<float*>(to), static_cast<const float*>(from), bytes / kWord);
}
void rewrite_memory(void* at, int64_t bytes) { loops().rewrite(static_cast<float*>(at), bytes / kWord); }

}  // namespace plimsoll::kernels
