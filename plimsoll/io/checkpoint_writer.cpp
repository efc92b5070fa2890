#include "plimsoll/io/checkpoint_writer.h"

#include <string_view>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/replace_directory.h"
#include "plimsoll/io/sha256.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

std::string file_name(const std::string& section, const Writer& writer) {
  return writer.world_size == 1 ? section + ".safetensors" : compose("{}.rank-{:05}.safetensors", section, writer.rank);
}

void check_piece(const std::string& section, const TensorPiece& piece) {
  if (piece.begin < 0 || piece.begin > piece.end || piece.end > count_of(piece.shape) ||
      piece.values.numel() != piece.end - piece.begin) {
    fail("checkpoint: {} '{}': expected a piece inside of {} elements, got {} to {} with {} values", section,
         piece.name, count_of(piece.shape), piece.begin, piece.end, piece.values.numel());
  }
}

}  // namespace

fs::path CheckpointPlace::final_name() const { return run / compose("{}{:08}", kStepPrefix, step); }
fs::path CheckpointPlace::partial() const { return final_name().native() + ".partial"; }

void begin_checkpoint(const CheckpointPlace& place) {
  with_our_errors([&] {
    fs::create_directories(place.run);
    fs::remove_all(place.partial());
    fs::create_directory(place.partial());
  });
}

Manifest write_pieces(const CheckpointPlace& place, const PieceMap& sections, const Writer& writer) {
  Manifest manifest{.step = place.step, .world_size = writer.world_size, .files = {}, .sections = {}};
  for (const auto& [section, pieces] : sections) {
    const std::string file = file_name(section, writer);
    SavedSection& saved = manifest.sections[section];
    TensorMap tensors;
    for (const TensorPiece& piece : pieces) {
      check_piece(section, piece);
      if (piece.begin == piece.end && count_of(piece.shape) > 0) continue;
      const bool whole = piece.values.numel() == count_of(piece.shape);
      if (!tensors.emplace(piece.name, whole ? piece.values.reshape(piece.shape) : piece.values.flatten()).second) {
        fail("checkpoint: {}: expected each name once on a rank, got '{}' twice", section, piece.name);
      }
      saved[piece.name] = {.dtype = std::string(safetensors_dtype(piece.values.scalar_type())),
                           .shape = piece.shape,
                           .pieces = {{file, piece.begin, piece.end}}};
    }
    if (!tensors.empty()) manifest.files[file] = save_safetensors_digested(place.partial() / file, tensors);
  }
  return manifest;
}

void commit_checkpoint(const CheckpointPlace& place, Manifest manifest, const nlohmann::json& state) {
  with_our_errors([&] {
    const std::string text = state.dump(2) + "\n";
    write_file(place.partial() / kState, text);
    manifest.files[kState] = digest_of(text);
    manifest.check("checkpoint");
    write_file(place.partial() / kManifest, nlohmann::json(manifest).dump(1) + "\n");
    replace_directory(place.partial(), place.final_name());
  });
}

void abandon_checkpoint(const CheckpointPlace& place) noexcept {
  std::error_code ignored;
  fs::remove_all(place.partial(), ignored);
}

}  // namespace plimsoll::io
