// The processes of a training run that work together, as torchrun, mpirun or srun started them.
#pragma once

#include <array>
#include <memory>

#include "plimsoll/app/train/train_options.h"
#include "plimsoll/recipe/named.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::app {

// Sharing by name. "none": nothing; "ddp": each batch; "zero1": the optimizer's states, too; "zero2": and the
// gradients; "fsdp": and the parameters.
inline constexpr std::array<recipe::Named<shard::Sharing>, 5> kSharings = {{{"none", shard::Sharing::kNone},
                                                                            {"ddp", shard::Sharing::kDdp},
                                                                            {"zero1", shard::Sharing::kZero1},
                                                                            {"zero2", shard::Sharing::kZero2},
                                                                            {"fsdp", shard::Sharing::kFsdp}}};

inline constexpr std::array<recipe::Named<Offload>, 3> kOffloads = {
    {{"none", Offload::kNone}, {"cpu", Offload::kCpu}, {"disk", Offload::kDisk}}};

// Throws UsageError where these do not go with the way of sharding.
void check_sharing(const TrainOptions& options);

// One rank alone under "none". Throws UsageError where the environment contradicts itself, c10::DistBackendError where
// others do not come.
std::shared_ptr<const shard::Communicator> connect_ranks(const TrainOptions& options);

// Whether this rank prints, logs and saves: the first of several does.
bool speaks(const TrainOptions& options);

}  // namespace plimsoll::app
