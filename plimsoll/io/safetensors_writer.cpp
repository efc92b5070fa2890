#include "plimsoll/io/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::io {
namespace {

void write_at(int descriptor, std::span<const std::byte> bytes, uint64_t offset, const std::filesystem::path& name) {
  check_before_system_reads(bytes);  // they may be another file's
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("{}: cannot write: {}", name.native(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

}  // namespace

int64_t TensorPlan::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), static_cast<int64_t>(c10::elementSize(dtype)),
                         std::multiplies<>());
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<TensorPlan>& plans,
                                     const SafetensorsMetadata& metadata)
    : path_(std::move(path)), partial_(open_partial_file(path_)) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorPlan& plan : plans) entries.push_back({.name = plan.name, .dtype = plan.dtype, .shape = plan.shape});
  std::ranges::stable_sort(entries, std::ranges::greater(),
                           [](const SafetensorsEntry& entry) { return c10::elementSize(entry.dtype); });
  uint64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = end;
    end += static_cast<uint64_t>(TensorPlan{entry.name, entry.dtype, entry.shape}.bytes());
    entry.end = end;
    left_.emplace(entry.name, entry);
  }
  const std::string header = format_safetensors_header(entries, metadata);
  data_offset_ = header.size();
  write_at(partial_.file.get(), std::as_bytes(std::span(header)), 0, path_);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!committed_) ::unlink(partial_.name.c_str());
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto found = left_.find(name);
  if (found == left_.end())
    fail("{}: tensor '{}': expected one that is to be written, got another", path_.native(), name);
  const SafetensorsEntry& entry = found->second;
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.scalar_type() != entry.dtype ||
      tensor.sizes() != entry.shape) {
    fail("{}: tensor '{}': expected a dense CPU tensor of the dtype and shape that were planned, got another",
         path_.native(), name);
  }
  const at::Tensor row_major = tensor.contiguous();
  write_at(partial_.file.get(),
           std::span(static_cast<const std::byte*>(row_major.const_data_ptr()), row_major.nbytes()),
           data_offset_ + entry.begin, path_);
  left_.erase(found);
}

void SafetensorsWriter::commit() {
  if (!left_.empty())
    fail("{}: tensor '{}': expected that it is written, got nothing", path_.native(), left_.begin()->first);
  check_mapped_files();  // whose bytes these may be
  if (::fsync(partial_.file.get()) != 0) fail("{}: cannot flush: {}", path_.native(), std::strerror(errno));
  rename_durably(partial_.name, path_);
  committed_ = true;
}

}  // namespace plimsoll::io
