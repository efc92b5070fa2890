// Threads of a pool on CPUs of their own. Linux wakes a thread on the CPU of the one that woke it when its own is busy
// with another program: the two then share one CPU, and a program that takes half of one costs a step all of it.
#pragma once

namespace plimsoll::runtime {

// Called between regions, by a program whose regions take milliseconds: beside other threads of its own, as a server has
// them, short ones are better left to the system. In each later region of a pool as large as the set of CPUs that this
// process may use now, each worker stays on one of them from then on, and the thread that begins the region moves to the one
// that is left; it stays free to go elsewhere, as do the threads that it starts. Smaller pools, of which several may share
// the machine, and larger ones are left to the system. Does nothing where OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is
// set, and where the process may use one CPU.
void keep_threads_apart();

// Called in a region by its thread `index` of a pool of `pool` threads; 0 is the one that began it. Takes system calls
// where that thread has to move.
void take_place(int index, int pool);

}  // namespace plimsoll::runtime
