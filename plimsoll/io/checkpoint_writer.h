// Steps that write a checkpoint and that ranks share: one begins it, all write what they hold, one commits it. Until
// then the directory has a name that no reader takes for a checkpoint. One process at a time saves to a run: the
// callers hold its OutputLock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "plimsoll/io/checkpoint_manifest.h"
#include "plimsoll/io/tensor_piece.h"

namespace plimsoll::io {

inline constexpr std::string_view kStepPrefix = "step-";

struct CheckpointPlace {
  std::filesystem::path run;
  int64_t step = 0;

  std::filesystem::path final_name() const;  // RUN/step-00000123
  std::filesystem::path partial() const;     // RUN/step-00000123.partial
};

struct Writer {
  int64_t rank = 0, world_size = 1;
};

// Makes the partial directory anew. Throws Error, as all do.
void begin_checkpoint(const CheckpointPlace& place);

// One rank's files, one for each section: SECTION.rank-00003.safetensors, or SECTION.safetensors of a rank that is
// alone. On disk when it returns.
Manifest write_pieces(const CheckpointPlace& place, const PieceMap& sections, const Writer& writer);

// manifest: merged from all ranks'. A checkpoint of the same step is replaced; a process that is killed meanwhile
// leaves the one or the other.
void commit_checkpoint(const CheckpointPlace& place, Manifest manifest, const nlohmann::json& state);

// Removes what was begun. Never throws.
void abandon_checkpoint(const CheckpointPlace& place) noexcept;

}  // namespace plimsoll::io
