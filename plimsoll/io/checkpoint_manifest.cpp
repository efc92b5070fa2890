#include "plimsoll/io/checkpoint_manifest.h"

#include <algorithm>

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/tensor_piece.h"

namespace plimsoll::io {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileDigest, bytes, sha256)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SavedPiece, file, begin, end)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SavedTensor, dtype, shape, pieces)

void Manifest::merge(const Manifest& other) {
  files.insert(other.files.begin(), other.files.end());
  for (const auto& [section, tensors] : other.sections) {
    SavedSection& kept = sections[section];
    for (const auto& [name, theirs] : tensors) {
      SavedTensor& ours = kept.try_emplace(name, SavedTensor{theirs.dtype, theirs.shape, {}}).first->second;
      if (ours.dtype != theirs.dtype || ours.shape != theirs.shape) {
        fail("checkpoint: expected {} '{}' of one dtype and shape on all ranks, got {} {} and {} {}", section, name,
             ours.dtype, json(ours.shape).dump(), theirs.dtype, json(theirs.shape).dump());
      }
      ours.pieces.insert(ours.pieces.end(), theirs.pieces.begin(), theirs.pieces.end());
      std::stable_sort(ours.pieces.begin(), ours.pieces.end(),
                       [](const SavedPiece& a, const SavedPiece& b) { return a.begin < b.begin; });
    }
  }
}

void Manifest::check(const std::string& name) const {
  for (const auto& [file, digest] : files) {
    if (std::filesystem::path(file).filename() != file || file == "." || file == "..") {
      fail("{}: expected plain file names, got '{}'", name, file);
    }
  }
  for (const auto& [section, tensors] : sections) {
    for (const auto& [tensor, saved] : tensors) {
      int64_t covered = 0;
      for (const SavedPiece& piece : saved.pieces) {
        if (!files.contains(piece.file)) fail("{}: {} '{}': unknown file '{}'", name, section, tensor, piece.file);
        if (piece.begin != covered || piece.end < piece.begin) {
          fail("{}: {} '{}': expected a piece that begins at element {}, got {} to {}", name, section, tensor, covered,
               piece.begin, piece.end);
        }
        covered = piece.end;
      }
      const bool negative = std::any_of(saved.shape.begin(), saved.shape.end(), [](int64_t size) { return size < 0; });
      if (negative || saved.pieces.empty() || covered != count_of(saved.shape)) {
        fail("{}: {} '{}': expected pieces of all elements of {}, got {} elements", name, section, tensor,
             json(saved.shape).dump(), covered);
      }
    }
  }
}

void to_json(json& document, const Manifest& manifest) {
  document = {{"step", manifest.step},
              {"world_size", manifest.world_size},
              {"files", manifest.files},
              {"tensors", manifest.sections}};
}

void from_json(const json& document, Manifest& manifest) {
  document.at("step").get_to(manifest.step);
  document.at("world_size").get_to(manifest.world_size);
  document.at("files").get_to(manifest.files);
  document.at("tensors").get_to(manifest.sections);
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / kManifest;
  const json text = read_json(file);
  Manifest manifest;
  try {
    text.get_to(manifest);
  } catch (const json::exception&) {
    fail("{}: expected a checkpoint's manifest {{\"step\", \"world_size\", \"files\", \"tensors\"}}", file.native());
  }
  manifest.check(file.native());
  return manifest;
}

}  // namespace plimsoll::io
