#include "plimsoll/app/process/ranks.h"

#include <chrono>
#include <stdexcept>

#include "plimsoll/app/error.h"

namespace plimsoll::app {
namespace {

shard::Launch launch_of(const TrainOptions& options) {
  if (options.shard == shard::Sharing::kNone) return {};
  try {
    return shard::launch_from_environment();
  } catch (const std::invalid_argument& error) {
    refuse("--shard {}: {}", recipe::name_of(kSharings, options.shard), error.what());
  }
}

}  // namespace

void check_sharing(const TrainOptions& options) {
  using shard::Sharing;
  const std::string_view way = recipe::name_of(kSharings, options.shard);
  const bool averages = options.shard != Sharing::kNone && options.shard != Sharing::kFsdp;
  if (options.compress != shard::Compression::kNone && !averages) {
    refuse("--compress {}: expected --shard ddp, zero1 or zero2, got {}",
           recipe::name_of(shard::kCompressions, options.compress), way);
  }
  if (options.offload != Offload::kNone && options.shard != Sharing::kFsdp) {
    refuse("--offload {}: expected --shard fsdp, got {}", recipe::name_of(kOffloads, options.offload), way);
  }
}

std::shared_ptr<const shard::Communicator> connect_ranks(const TrainOptions& options) {
  return shard::Communicator::connect(launch_of(options), {.deadline = std::chrono::seconds(options.deadline)});
}

bool speaks(const TrainOptions& options) { return launch_of(options).rank == 0; }

}  // namespace plimsoll::app
