// The classes of plimsoll.shard. Their signatures name each other, so one file registers them in order.
#pragma once

#include <torch/library.h>

namespace plimsoll::bind {

void register_ranks(torch::Library& library);
void register_findings(torch::Library& library);
void register_checkpoints(torch::Library& library);
void register_fully_sharded(torch::Library& library);
void register_hooked_buckets(torch::Library& library);
void register_gradient_reducer(torch::Library& library);
void register_parameter_shares(torch::Library& library);

}  // namespace plimsoll::bind
