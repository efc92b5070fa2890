// Checkpoints of a run: one directory per step, there whole or not at all.
//   RUN/step-00000123/model.safetensors      one file per section; of several ranks SECTION.rank-00003.safetensors
//                     optimizer.safetensors
//                     state.json             what is no tensor
//                     manifest.json          what is where, and the files' digests: checkpoint_manifest.h
// It is written as step-00000123.partial, flushed to the disk and renamed. One process at a time saves to a run. Here
// are the checkpoints of one process, and whole ones of any number of them; shard/checkpoint/checkpoint.h saves and loads those of
// several.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/io/safetensors.h"

namespace plimsoll::io {

struct Checkpoint {
  int64_t step = 0;
  std::map<std::string, TensorMap> sections;  // section "model" is the file model.safetensors
  nlohmann::json state;
};

// Returns the step's directory. A checkpoint of the same step is replaced. Throws Error (a full disk, or another
// process that saves there, for example) and leaves what was there before.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const Checkpoint& checkpoint);

// The steps' directories, oldest first. One that was about to be replaced when its writer was killed has its name with
// ".replaced" behind it.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);

// Reads one step's directory after checking every file's size and digest; how many ranks saved it does not matter.
// Throws Error naming the file that is missing or altered.
Checkpoint load_checkpoint(const std::filesystem::path& directory);

struct LatestCheckpoint {
  Checkpoint checkpoint;
  std::filesystem::path directory;
  std::vector<std::string> refused;  // one line for each newer checkpoint that is damaged
};

// The newest good checkpoint of a run; nothing if the run has none. Throws Error if all that it has are damaged.
std::optional<LatestCheckpoint> load_latest_checkpoint(const std::filesystem::path& run);

// Removes what processes that were killed left half-written or half-removed; a whole checkpoint under another name stays.
void remove_left_overs(const std::filesystem::path& run);

// Removes all but the last `keep` checkpoints, 1 or more, of steps up to `saved`, the one that was just saved, and what
// processes that were killed left half-written. Those of higher steps stay, whole or damaged: they tell nothing of the age
// of the others where a run went on from an earlier step.
void remove_old_checkpoints(const std::filesystem::path& run, int64_t saved, size_t keep);

}  // namespace plimsoll::io
