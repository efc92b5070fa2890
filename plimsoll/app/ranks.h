// The processes of a training run that work together, as torchrun, mpirun or srun started them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "plimsoll/app/train_options.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::app {

// What they share: "none", nothing; "ddp", each batch; "zero1", the optimizer's states, too; "zero2", and the
// gradients; "fsdp", and the parameters.
const std::vector<std::string_view>& shard_names();

// Where a rank's part waits while it does not compute: "none", in memory; "cpu", in the memory of the CPU, where all of
// it is; "disk", in files without names in the directory of the run.
const std::vector<std::string_view>& offload_names();

// Throws UsageError where these do not go with the way of sharding.
void check_sharing(const TrainOptions& options);

// One rank alone under "none". Throws UsageError where the environment contradicts itself, c10::DistBackendError where
// others do not come.
std::shared_ptr<const shard::Communicator> connect_ranks(const TrainOptions& options);

// Whether this rank prints, logs and saves: the first of several does.
bool speaks(const TrainOptions& options);

}  // namespace plimsoll::app
