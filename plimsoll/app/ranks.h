// The processes of a training run that work together, as torchrun, mpirun or srun started them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "plimsoll/app/train_options.h"
#include "plimsoll/shard/communicator.h"

namespace plimsoll::app {

// What they share: "none", nothing; "ddp", each batch; "zero1", the optimizer's states, too; "zero2", and the
// gradients; "fsdp", and the parameters.
const std::vector<std::string_view>& shard_names();

// One rank alone under "none". Throws UsageError where the environment contradicts itself, c10::DistBackendError where
// others do not come.
std::shared_ptr<const shard::Communicator> connect_ranks(const TrainOptions& options);

// Of several ranks the first prints, logs and saves.
bool speaks(const TrainOptions& options);

}  // namespace plimsoll::app
