#define PLIMSOLL_LOOPS kMemoryLoopsAvx2
#include "plimsoll/kernels/limits/memory_loops.inc"
