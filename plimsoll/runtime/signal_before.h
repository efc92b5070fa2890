// Signals that a handler of ours does not take: they go to the handler that stood before it.
#pragma once

#include <csignal>

namespace plimsoll::runtime {

// Called in a handler. Where there was no handler, the signal's default is put back: the interrupted instruction faults
// again, and the process ends as it would have without ours.
void pass_to_handler_before(const struct sigaction& before, int signal, siginfo_t* info, void* context);

}  // namespace plimsoll::runtime
