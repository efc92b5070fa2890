#include "plimsoll/shard/engine/mapped_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "plimsoll/io/file_descriptor.h"

namespace plimsoll::shard {
namespace {

uintptr_t page_size() {
  static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

struct Mapping {
  void* memory;
  size_t bytes;
};

void unmap(void* context) {
  const auto* const mapping = static_cast<Mapping*>(context);
  munmap(mapping->memory, mapping->bytes);
  delete mapping;
}

// Whole pages, those at the ends included. Of other memory "not needed" means zeros.
void advise(const at::Tensor& tensor, int advice) {
  if (tensor.numel() == 0 || tensor.storage().data_ptr().get_deleter() != &unmap) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t first = begin / page_size() * page_size();
  madvise(reinterpret_cast<void*>(first), begin + tensor.nbytes() - first, advice);
}

}  // namespace

at::Tensor mapped_zeros(at::IntArrayRef sizes, at::ScalarType dtype, const std::filesystem::path& folder) {
  const auto options = at::TensorOptions(dtype);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  if (bytes == 0) return at::empty(sizes, options);
  std::string path = folder / "offload-XXXXXX";
  const io::FileDescriptor file(mkostemp(path.data(), O_CLOEXEC));
  TORCH_CHECK(static_cast<bool>(file), "offload: cannot make a file in ", folder.native(), ": ", std::strerror(errno));
  unlink(path.c_str());
  const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  TORCH_CHECK(error == 0, "offload: expected ", bytes, " free bytes on the file system of ", folder.native(), ": ",
              std::strerror(error));
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  TORCH_CHECK(memory != MAP_FAILED, "offload: cannot map a file of ", bytes, " bytes: ", std::strerror(errno));
  c10::DataPtr data(memory, new Mapping{memory, bytes}, &unmap, at::kCPU);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data));
  return at::empty({0}, options).set_(storage, 0, sizes);
}

void expect_pages(const at::Tensor& tensor) { advise(tensor, MADV_WILLNEED); }
void release_pages(const at::Tensor& tensor) { advise(tensor, MADV_DONTNEED); }

}  // namespace plimsoll::shard
