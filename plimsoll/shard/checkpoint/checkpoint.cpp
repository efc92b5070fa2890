#include "plimsoll/shard/checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/checkpoint_writer.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/output_lock.h"
#include "plimsoll/shard/checkpoint/partition.h"
#include "plimsoll/shard/communicator/gather_texts.h"

namespace plimsoll::shard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Files of the checkpoint that this rank verifies.
std::vector<std::string> share_of(const std::vector<std::string>& files, int64_t rank, int64_t size) {
  std::vector<std::string> mine;
  for (size_t i = static_cast<size_t>(rank); i < files.size(); i += static_cast<size_t>(size)) mine.push_back(files[i]);
  return mine;
}

void write(const io::CheckpointPlace& place, const RankCheckpoint& checkpoint, const ops::RankGroup& ranks,
           int64_t rank) {
  const std::vector<std::string> manifests = on_all(ranks, [&] {
    return json(io::write_pieces(place, checkpoint.sections, {.rank = rank, .world_size = ranks.size()})).dump();
  });
  on_all(ranks, [&] {
    if (rank != 0) return "";
    io::Manifest whole{.step = checkpoint.step, .world_size = ranks.size(), .files = {}, .sections = {}};
    for (const std::string& manifest : manifests) whole.merge(json::parse(manifest).get<io::Manifest>());
    io::commit_checkpoint(place, std::move(whole), checkpoint.state);
    return "";
  });
}

}  // namespace

std::vector<io::TensorPiece> share_of_replicated(const io::TensorMap& tensors, const ops::RankGroup& ranks,
                                                 int64_t rank) {
  std::vector<int64_t> sizes;
  for (const auto& [name, tensor] : tensors) sizes.push_back(static_cast<int64_t>(tensor.nbytes()));
  const std::vector<int64_t> writers = balanced_owners(sizes, ranks.size());
  std::vector<io::TensorPiece> mine;
  auto writer = writers.begin();
  for (const auto& [name, tensor] : tensors) {
    if (*writer++ == rank) mine.push_back(io::whole_piece(name, tensor));
  }
  return mine;
}

fs::path save_checkpoint(const fs::path& run, const RankCheckpoint& checkpoint, const ops::RankGroup& ranks,
                         int64_t rank) {
  const io::CheckpointPlace place{.run = run, .step = checkpoint.step};
  std::optional<io::OutputLock> lock;
  on_all(ranks, [&] {
    if (rank != 0) return "";
    lock.emplace(io::OutputLock::of_directory(run));
    io::begin_checkpoint(place);
    return "";
  });
  try {
    write(place, checkpoint, ranks, rank);
  } catch (...) {
    if (rank == 0) io::abandon_checkpoint(place);
    throw;
  }
  return place.final_name();
}

std::optional<OpenCheckpoint> open_latest_checkpoint(const fs::path& run, const ops::RankGroup& ranks, int64_t rank) {
  // Rank 0's list of checkpoints counts: another rank's view of a network's file system may be older.
  const json names = json::parse(on_all(ranks, [&] {
    json list = json::array();
    if (rank == 0) {
      for (const fs::path& directory : io::list_checkpoints(run)) list.push_back(directory.filename().native());
    }
    return list.dump();
  })[0]);
  std::vector<std::string> refused;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    try {
      std::optional<io::CheckpointReader> reader;
      on_all(ranks, [&] {
        reader.emplace(run / name->get_ref<const std::string&>());
        reader->verify(share_of(reader->files(), rank, ranks.size()));
        return "";
      });
      return OpenCheckpoint{std::move(*reader), refused};
    } catch (const io::Error& error) {
      refused.emplace_back(error.what());
    }
  }
  if (!refused.empty()) io::fail("{}", fmt::join(refused, "; "));
  return std::nullopt;
}

}  // namespace plimsoll::shard
