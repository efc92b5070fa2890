#include "plimsoll/app/ranks.h"

#include <chrono>
#include <stdexcept>

#include "plimsoll/app/error.h"

namespace plimsoll::app {
namespace {

shard::Launch launch_of(const TrainOptions& options) {
  if (options.shard == "none") return {};
  try {
    return shard::launch_from_environment();
  } catch (const std::invalid_argument& error) {
    refuse("--shard {}: {}", options.shard, error.what());
  }
}

}  // namespace

const std::vector<std::string_view>& shard_names() {
  static const std::vector<std::string_view> names = {"none", "ddp", "zero1", "zero2", "fsdp"};
  return names;
}

const std::vector<std::string_view>& offload_names() {
  static const std::vector<std::string_view> names = {"none", "cpu", "disk"};
  return names;
}

void check_sharing(const TrainOptions& options) {
  if (options.compress != "none" && options.shard != "ddp" && options.shard != "zero1") {
    refuse("--compress {}: expected --shard ddp or zero1, got {}", options.compress, options.shard);
  }
  if (options.offload != "none" && options.shard != "fsdp") {
    refuse("--offload {}: expected --shard fsdp, got {}", options.offload, options.shard);
  }
}

std::shared_ptr<const shard::Communicator> connect_ranks(const TrainOptions& options) {
  return shard::Communicator::connect(launch_of(options), {.deadline = std::chrono::seconds(options.deadline)});
}

bool speaks(const TrainOptions& options) { return launch_of(options).rank == 0; }

}  // namespace plimsoll::app
