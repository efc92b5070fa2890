// The settings of a process that runs commands.
#pragma once

namespace plimsoll::cli {

// Before anything is allocated or computed: torch's memory is kept for the next tensor, threads keep to the CPUs that the process may
// use, and a file over the size limit is an error like any other, with its one line.
void start_process();

}  // namespace plimsoll::cli
