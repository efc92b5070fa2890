// The manifest of a checkpoint: its files with their digests, and which ranges of which tensors they hold.
//   {"step": 123, "world_size": 2,
//    "files": {"model.rank-00000.safetensors": {"bytes": 800, "sha256": ["..."]}, ...},
//    "tensors": {"model": {"weight": {"dtype": "F32", "shape": [20, 5], "pieces": [
//        {"file": "model.rank-00000.safetensors", "begin": 0, "end": 50}, ...]}}}}
// begin and end count elements of the whole tensor, in row-major order; the pieces of a tensor cover it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/io/safetensors.h"

namespace plimsoll::io {

struct SavedPiece {
  std::string file;
  int64_t begin = 0, end = 0;
};

struct SavedTensor {
  std::string dtype;  // safetensors' name
  std::vector<int64_t> shape;
  std::vector<SavedPiece> pieces;  // by begin
};

using SavedSection = std::map<std::string, SavedTensor>;

struct Manifest {
  int64_t step = 0;
  int64_t world_size = 1;  // processes that saved it
  std::map<std::string, FileDigest> files;
  std::map<std::string, SavedSection> sections;

  // Takes what another rank has written along. Throws Error where the two contradict each other.
  void merge(const Manifest& other);

  // Throws Error, which opens with `name`, unless files are plain names and the pieces of each tensor cover it.
  void check(const std::string& name) const;
};

inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kState = "state.json";  // what is no tensor

void to_json(nlohmann::json& document, const Manifest& manifest);
void from_json(const nlohmann::json& document, Manifest& manifest);

// Throws Error.
Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace plimsoll::io
