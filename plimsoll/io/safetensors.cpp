#include "plimsoll/io/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ne.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::io {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : name_(path.native()),
      file_(std::make_shared<MappedFile>(path)),
      header_(parse_safetensors_header(file_->bytes(), name_)) {}

at::Tensor SafetensorsFile::tensor(const SafetensorsEntry& entry) const {
  if (entry.begin == entry.end) return at::empty(entry.shape, entry.dtype);
  std::byte* data = file_->bytes().data() + header_.data_offset + entry.begin;
  if (entry.dtype == at::kBool) {
    // Any byte may stand in the file, but a bool in memory is 0 or 1.
    return at::from_blob(data, entry.shape, at::TensorOptions(at::kByte)).ne(0);
  }
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(entry.dtype) != 0) {
    at::Tensor copy = at::empty(entry.shape, entry.dtype);
    std::memcpy(copy.mutable_data_ptr(), data, entry.end - entry.begin);
    return copy;
  }
  return at::from_blob(
      data, entry.shape, [keep = file_](void*) {}, at::TensorOptions(entry.dtype));
}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  const auto found =
      std::find_if(entries().begin(), entries().end(), [&](const auto& entry) { return entry.name == name; });
  if (found == entries().end()) fail("{}: expected a tensor '{}'", name_, name);
  return tensor(*found);
}

TensorMap SafetensorsFile::tensors() const {
  TensorMap result;
  for (const SafetensorsEntry& entry : entries()) result.emplace(entry.name, tensor(entry));
  return result;
}

std::function<void()> SafetensorsFile::releaser(const SafetensorsEntry& entry) const {
  const auto part = file_->bytes().subspan(header_.data_offset + entry.begin, entry.end - entry.begin);
  return [file = file_, part] { file->release(part); };
}

namespace {

// A file before it is written: the header, and the tensors in the order of their data.
struct Layout {
  std::string header;
  std::vector<at::Tensor> tensors;
  uint64_t bytes = 0;
};

Layout lay_out(const std::filesystem::path& path, const TensorMap& tensors, const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
      fail("{}: tensor '{}': expected a dense CPU tensor", path.native(), name);
    }
    entries.push_back({.name = name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return c10::elementSize(a.dtype) > c10::elementSize(b.dtype); });
  Layout layout;
  for (SafetensorsEntry& entry : entries) {
    layout.tensors.push_back(tensors.at(entry.name));
    entry.begin = layout.bytes;
    layout.bytes += layout.tensors.back().nbytes();
    entry.end = layout.bytes;
  }
  layout.header = format_safetensors_header(entries, metadata);
  layout.bytes += layout.header.size();
  return layout;
}

// sink(bytes) takes the file part by part.
template <class Sink>
void stream(const Layout& layout, const Sink& sink) {
  sink(std::as_bytes(std::span(layout.header)));
  for (const at::Tensor& tensor : layout.tensors) {
    const at::Tensor row_major = tensor.contiguous();
    sink(std::span(static_cast<const std::byte*>(row_major.const_data_ptr()), row_major.nbytes()));
  }
}

void write(const std::filesystem::path& path, const Layout& layout) {
  AtomicFile file(path);
  stream(layout, [&](std::span<const std::byte> bytes) {
    check_before_system_reads(bytes);
    file.write(bytes);
  });
  check_mapped_files();  // whose bytes these may be
  file.commit();
}

FileDigest digest_of(const Layout& layout) {
  FileDigester digester;
  stream(layout, [&](std::span<const std::byte> bytes) { digester.add(bytes); });
  return digester.digest();
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                      const SafetensorsMetadata& metadata) {
  write(path, lay_out(path, tensors, metadata));
}

FileDigest save_safetensors_digested(const std::filesystem::path& path, const TensorMap& tensors) {
  const Layout layout = lay_out(path, tensors, {});
  std::future<FileDigest> digest = std::async(std::launch::async, [&] { return digest_of(layout); });
  write(path, layout);
  return digest.get();
}

}  // namespace plimsoll::io
