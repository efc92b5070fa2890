// Ranks that send each other tensors of different sizes: Gloo throws in a thread of its own, which ends the process.
#pragma once

namespace plimsoll::shard {

// Before such an end, from now on, the process says on stderr what all ranks must have alike. Where a program has a terminate
// handler of its own, that is called then as ever.
void explain_unequal_collectives();

}  // namespace plimsoll::shard
