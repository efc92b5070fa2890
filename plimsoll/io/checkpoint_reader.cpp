#include "plimsoll/io/checkpoint_reader.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <optional>
#include <ranges>
#include <utility>

#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/mapped_file.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/io/regular_file.h"
#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

void expect_size(const fs::path& file, const FileDigest& expected) {
  if (!fs::exists(file)) fail("{}: expected a file of the checkpoint, got none", file.native());
  const uint64_t bytes = open_regular_file(file).bytes;
  if (bytes != expected.bytes) {
    fail("{}: expected {} bytes, got {}{}", file.native(), expected.bytes, bytes,
         bytes < expected.bytes ? " (truncated?)" : "");
  }
  const size_t parts = (bytes + kDigestedBytes - 1) / kDigestedBytes;
  if (expected.sha256.size() != parts) {
    fail("{}: expected its manifest.json to give the SHA-256 of {} parts, got {}", file.native(), parts,
         expected.sha256.size());
  }
}

// Part of a file, and its digest.
struct Part {
  const fs::path* file;
  std::span<const std::byte> bytes;
  const std::string* sha256;

  void verify() const {
    if (io::sha256(bytes) != *sha256) {
      check_mapped_files();
      fail("{}: expected the SHA-256 that its manifest.json gives, got another (altered file)", file->native());
    }
  }
};

}  // namespace

CheckpointReader::CheckpointReader(fs::path directory)
    : directory_(std::move(directory)), manifest_(read_manifest(directory_)) {
  if (!manifest_.files.contains(kState)) fail("{}: expected {} among its files", directory_.native(), kState);
  verify({kState});
  state_ = read_json(directory_ / kState);
}

std::vector<std::string> CheckpointReader::files() const {
  std::vector<std::string> names;
  for (const auto& [name, digest] : manifest_.files) {
    if (name != kState) names.push_back(name);
  }
  return names;
}

void CheckpointReader::verify(const std::vector<std::string>& files) const {
  std::deque<std::pair<fs::path, MappedFile>> opened;  // whose elements stay where they are
  std::vector<Part> parts;
  with_our_errors([&] {
    for (const std::string& name : files) {
      const FileDigest& digest = manifest_.files.at(name);
      expect_size(directory_ / name, digest);
      const auto& [path, file] = opened.emplace_back(directory_ / name, MappedFile(directory_ / name));
      for (size_t i = 0; i < digest.sha256.size(); ++i) {
        const std::span<const std::byte> rest = file.bytes().subspan(i * kDigestedBytes);
        parts.push_back({&path, rest.first(std::min(rest.size(), kDigestedBytes)), &digest.sha256[i]});
      }
    }
  });
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++) parts[i].verify();
  };
  std::vector<std::future<void>> workers;
  const size_t count = std::min(parts.size(), static_cast<size_t>(runtime::threads()));
  for (size_t i = 1; i < count; ++i) workers.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& worker : workers) worker.get();
}

bool CheckpointReader::has(const std::string& section, const std::string& tensor) const {
  const auto found = manifest_.sections.find(section);
  return found != manifest_.sections.end() && found->second.contains(tensor);
}

const SavedTensor& CheckpointReader::saved(const std::string& section, const std::string& tensor) const {
  if (!has(section, tensor)) fail("{}: expected a tensor '{}' in section {}", directory_.native(), tensor, section);
  return manifest_.sections.at(section).at(tensor);
}

at::Tensor CheckpointReader::values(const std::string& tensor, const SavedTensor& whole,
                                    const SavedPiece& piece) const {
  auto file = open_.find(piece.file);
  if (file == open_.end()) file = open_.emplace(piece.file, directory_ / piece.file).first;
  at::Tensor found = file->second.tensor(tensor).flatten();
  if (found.numel() != piece.end - piece.begin || safetensors_dtype(found.scalar_type()) != whole.dtype) {
    fail("{}: tensor '{}': expected {} {}, as the manifest says, got {} {}", (directory_ / piece.file).native(), tensor,
         piece.end - piece.begin, whole.dtype, found.numel(), safetensors_dtype(found.scalar_type()));
  }
  return found;
}

at::Tensor CheckpointReader::read(const std::string& section, const std::string& tensor, int64_t begin,
                                  int64_t end) const {
  const SavedTensor& whole = saved(section, tensor);
  const int64_t count = count_of(whole.shape);
  if (begin < 0 || begin > end || end > count) {
    fail("{}: {} '{}': expected a range of {} elements, got {} to {}", directory_.native(), section, tensor, count,
         begin, end);
  }
  if (begin == end) return values(tensor, whole, whole.pieces.front()).slice(0, 0, 0);
  at::Tensor result;
  for (const SavedPiece& piece : whole.pieces) {
    const int64_t first = std::max(begin, piece.begin), last = std::min(end, piece.end);
    if (first >= last) continue;
    const at::Tensor part = values(tensor, whole, piece).slice(0, first - piece.begin, last - piece.begin);
    if (last - first == end - begin) return part;
    if (!result.defined()) result = at::empty({end - begin}, part.options());
    result.slice(0, first - begin, last - begin).copy_(part);
  }
  return result;
}

at::Tensor CheckpointReader::read(const std::string& section, const std::string& tensor) const {
  const SavedTensor& whole = saved(section, tensor);
  return read(section, tensor, 0, count_of(whole.shape)).view(whole.shape);
}

TensorMap CheckpointReader::read_section(const std::string& section) const {
  TensorMap tensors;
  const auto found = manifest_.sections.find(section);
  if (found == manifest_.sections.end()) {
    fail("{}: expected a section, one of {}, got '{}'", directory_.native(),
         fmt::join(std::views::keys(manifest_.sections), ", "), section);
  }
  for (const auto& [name, saved] : found->second) tensors.emplace(name, read(section, name));
  return tensors;
}

}  // namespace plimsoll::io
