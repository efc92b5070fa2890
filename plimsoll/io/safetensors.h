// Tensors by name in a safetensors file.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/io/mapped_file.h"
#include "plimsoll/io/safetensors_header.h"
#include "plimsoll/io/sha256.h"

namespace plimsoll::io {

using TensorMap = std::map<std::string, at::Tensor>;

// An open file. Tensors are views of the mapping, read from disk when touched; the mapping lives as long as the last of
// them. Writing to one changes neither the file nor what another process sees. BOOL tensors, and those whose bytes are
// not aligned to their dtype, are copies.
class SafetensorsFile {
 public:
  // Throws Error, one line, for anything that the format does not allow.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  at::Tensor tensor(const SafetensorsEntry& entry) const;
  at::Tensor tensor(std::string_view name) const;
  TensorMap tensors() const;

  // Gives the memory that a tensor's pages take back, which are read again when it is touched again. The call may
  // outlive the file. What was written to the tensor is lost.
  std::function<void()> releaser(const SafetensorsEntry& entry) const;

 private:
  std::string name_;
  std::shared_ptr<MappedFile> file_;
  SafetensorsHeader header_;
};

// Replaces the file in one step (see AtomicFile). Tensors may have any strides; they are written contiguous, largest
// dtype first, then by name.
void save_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                      const SafetensorsMetadata& metadata = {});

// The same, with the digest of what was written, which another thread makes meanwhile.
FileDigest save_safetensors_digested(const std::filesystem::path& path, const TensorMap& tensors);

}  // namespace plimsoll::io
