// Reads a checkpoint, whole or any range of any tensor, however many ranks saved it.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/io/checkpoint_manifest.h"
#include "plimsoll/io/safetensors.h"

namespace plimsoll::io {

// One thread at a time. Tensors outlive it.
class CheckpointReader {
 public:
  // Throws Error, as all members do, naming the file that is missing or altered. Looks into the manifest and the state
  // alone: verify() what is to be read.
  explicit CheckpointReader(std::filesystem::path directory);

  const std::filesystem::path& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  int64_t step() const { return manifest_.step; }
  const nlohmann::json& state() const { return state_; }

  // Files that hold tensors.
  std::vector<std::string> files() const;
  // Reads these files through and compares their sizes and digests with the manifest's.
  void verify(const std::vector<std::string>& files) const;

  bool has(const std::string& section, const std::string& tensor) const;
  // Elements begin to end of the flattened tensor: [end - begin]. A view of the file where one piece holds them all.
  at::Tensor read(const std::string& section, const std::string& tensor, int64_t begin, int64_t end) const;
  // All of them, in the tensor's shape.
  at::Tensor read(const std::string& section, const std::string& tensor) const;
  TensorMap read_section(const std::string& section) const;

 private:
  const SavedTensor& saved(const std::string& section, const std::string& tensor) const;
  // The piece as its file has it, flattened.
  at::Tensor values(const std::string& tensor, const SavedTensor& whole, const SavedPiece& piece) const;

  std::filesystem::path directory_;
  Manifest manifest_;
  nlohmann::json state_;
  mutable std::map<std::string, SafetensorsFile> open_;
};

}  // namespace plimsoll::io
