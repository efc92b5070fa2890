#define PLIMSOLL_LOOPS kMemoryLoopsAvx512
#include "plimsoll/kernels/limits/memory_loops.inc"
