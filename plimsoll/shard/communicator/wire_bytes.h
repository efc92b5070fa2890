// Bytes that this process has sent to others.
#pragma once

#include <cstdint>

namespace plimsoll::shard {

// Over the TCP connections that are open now, as the system counts it.
int64_t bytes_on_the_wire();

}  // namespace plimsoll::shard
