#include "plimsoll/app/checkpoint/consolidate.h"

#include <algorithm>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/io/output_lock.h"
#include "plimsoll/shard/checkpoint/checkpoint.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::app {
namespace {

io::CheckpointReader open_checkpoint(const ConsolidateOptions& options) {
  const std::filesystem::path& path = options.checkpoint;
  if (std::filesystem::exists(path / io::kManifest)) {
    io::CheckpointReader reader(path);
    reader.verify(reader.files());
    return reader;
  }
  auto latest = shard::open_latest_checkpoint(path, *shard::Communicator::connect({}), 0);
  if (!latest) fail("{}: expected a checkpoint or a run with one, got none", path.native());
  if (options.warn) std::ranges::for_each(latest->refused, options.warn);
  return std::move(latest->reader);
}

}  // namespace

Consolidated consolidate(const ConsolidateOptions& options) {
  const InterruptScope interrupt;
  const io::OutputLock lock = io::OutputLock::of_file(options.out);
  expect_free(options.out, "file");
  const io::CheckpointReader reader = open_checkpoint(options);
  interrupt.stop_if_requested("consolidate");
  const io::TensorMap tensors = reader.read_section(options.section);
  interrupt.stop_if_requested("consolidate");
  io::save_safetensors(options.out, tensors, {{"format", "pt"}});  // what Hugging Face's readers look for
  Consolidated result{.checkpoint = reader.directory(),
                      .world_size = reader.manifest().world_size,
                      .tensors = static_cast<int64_t>(tensors.size())};
  for (const auto& [name, tensor] : tensors) result.bytes += static_cast<int64_t>(tensor.nbytes());
  return result;
}

}  // namespace plimsoll::app
