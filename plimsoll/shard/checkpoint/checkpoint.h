// Checkpoints of several ranks: each writes what it holds, and any number of ranks reads them again. Files and formats:
// io/checkpoint.h.
//
//   shard::save_checkpoint(run, {.step = 100, .sections = mine, .state = state}, *ranks, rank);
//   if (const auto latest = shard::open_latest_checkpoint(run, *ranks, rank)) {
//     latest->reader.read("model", "weight", begin, end);  // on each rank what it needs
//   }
//
// The run's directory is one that all ranks see.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/ops/ranks/rank_group.h"

namespace plimsoll::shard {

// The tensors that this rank writes of those that all ranks have: about as many bytes as each other rank.
std::vector<io::TensorPiece> share_of_replicated(const io::TensorMap& tensors, const ops::RankGroup& ranks,
                                                 int64_t rank);

struct RankCheckpoint {
  int64_t step = 0;
  io::PieceMap sections;  // what this rank holds: all ranks' pieces together cover each tensor once
  nlohmann::json state;   // what is no tensor; rank 0's counts
};

// A collective. Where one rank fails (a full disk, or another process that saves to the run), all throw its io::Error,
// and what was there before stays.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const RankCheckpoint& checkpoint,
                                      const ops::RankGroup& ranks, int64_t rank);

struct OpenCheckpoint {
  io::CheckpointReader reader;
  std::vector<std::string> refused;  // one line for each newer checkpoint that is damaged
};

// A collective: the newest good checkpoint of a run, the same one on all ranks; nothing if the run has none. Each rank
// reads some of the files through to verify them. Throws io::Error if all that there are are damaged.
std::optional<OpenCheckpoint> open_latest_checkpoint(const std::filesystem::path& run, const ops::RankGroup& ranks,
                                                     int64_t rank);

}  // namespace plimsoll::shard
