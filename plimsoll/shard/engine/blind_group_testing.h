// A process group of c10d for the blind device: Gloo, around which tensors are copied.
#pragma once

#include <memory>
#include <string>

#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard::testing {

// The ranks of a launch that are connected already, over a process group of this name that has a backend for the blind
// device and for no other. As the contract of c10d wants it, tensors of a collective must stay as they are until it is
// waited for, which is when results arrive.
std::shared_ptr<Communicator> blind_group(const Launch& launch, const std::string& name);

}  // namespace plimsoll::shard::testing
