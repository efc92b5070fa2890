#include "tests/ptx/card.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "plimsoll/kernels/cuda/driver.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx {
namespace {

using kernels::cuda::check;
using kernels::cuda::expect_driver;

// Bytes before and after each copy of a buffer, which no kernel may write, and the filling of those that are not written yet.
constexpr size_t kGuard = 256;
constexpr uint8_t kUntouched = 0xa5;

// A buffer's copy in the card's memory, as far from a multiple of 256 as the buffer is.
class CardBuffer {
 public:
  explicit CardBuffer(Buffer& buffer)
      : buffer_(buffer),
        first_(kGuard + buffer.base % kGuard),
        sent_(first_ + buffer.bytes.size() + kGuard, kUntouched) {
    for (size_t i = 0; i < buffer.bytes.size(); ++i) {
      if (buffer.shadow[i].written) sent_[first_ + i] = buffer.bytes[i];
    }
    check(expect_driver().memory_allocate(&memory_, sent_.size()), "card: allocating");
    check(expect_driver().copy_to_device(memory_, sent_.data(), sent_.size()), "card: copying to it");
  }
  CardBuffer(const CardBuffer&) = delete;
  CardBuffer& operator=(const CardBuffer&) = delete;
  ~CardBuffer() { expect_driver().memory_free(memory_); }

  uint64_t address() const { return memory_ + first_; }
  bool holds(uint64_t address) const {
    return address - buffer_.base <= buffer_.bytes.size();  // its end belongs to it, as where it is empty
  }
  uint64_t moved(uint64_t address) const { return this->address() + (address - buffer_.base); }

  void bring_back(const std::string& kernel) {
    std::vector<uint8_t> got(sent_.size());
    check(expect_driver().copy_to_host(got.data(), memory_, got.size()), "card: copying from it");
    const size_t end = first_ + buffer_.bytes.size();
    for (size_t i = 0; i < got.size(); ++i) {
      const bool beside = i < first_ || i >= end;
      if (got[i] != sent_[i] && (beside || buffer_.read_only)) {
        throw Fault("kernel " + kernel + " on the card: writes " + (beside ? "beside " : "read-only ") + buffer_.name +
                    ", byte " + std::to_string(static_cast<int64_t>(i) - static_cast<int64_t>(first_)));
      }
    }
    std::copy(got.begin() + static_cast<std::ptrdiff_t>(first_), got.begin() + static_cast<std::ptrdiff_t>(end),
              buffer_.bytes.begin());
    for (Shadow& shadow : buffer_.shadow) shadow.written = true;
  }

 private:
  Buffer& buffer_;
  size_t first_;
  std::vector<uint8_t> sent_;
  uint64_t memory_ = 0;
};

// The file, and a zero at the end of it, which PTX needs.
std::vector<char> read_image(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> image((std::istreambuf_iterator<char>(file)), {});
  image.push_back('\0');
  return image;
}

}  // namespace

// Machine code where there is some, else PTX, which the driver translates.
Card::Card() {
  kernels::cuda::make_current(0);
  for (const auto& entry : std::filesystem::directory_iterator(testing::ptx_directory())) {
    std::filesystem::path path = entry.path();
    if (path.extension() != ".ptx") continue;
    const std::filesystem::path machine_code = std::filesystem::path(path).replace_extension(".fatbin");
    if (std::filesystem::exists(machine_code)) path = machine_code;
    void* library = nullptr;
    const std::vector<char> image = read_image(path);
    check(expect_driver().library_load_data(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
          path.c_str());
    libraries_.push_back(library);
  }
}

Card* Card::in_use() {
  const char* const asked = std::getenv("PLIMSOLL_CARD");
  if (asked == nullptr || std::string(asked) != "1") return nullptr;
  static Card card;
  return &card;
}

void* Card::find(const std::string& kernel) const {
  for (void* library : libraries_) {
    void* found = nullptr;
    if (expect_driver().library_get_kernel(&found, library, kernel.c_str()) == 0) return found;
  }
  throw Fault("card: no kernel " + kernel);
}

void Card::run(const std::string& kernel, Memory& memory, kernels::Launch shape, std::vector<uint8_t> arguments) {
  std::vector<std::unique_ptr<CardBuffer>> copies;
  for (Buffer& buffer : memory.buffers()) copies.push_back(std::make_unique<CardBuffer>(buffer));
  for (size_t offset = 0; offset + sizeof(uint64_t) <= arguments.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, arguments.data() + offset, sizeof(word));
    const auto found = std::ranges::find_if(copies, [word](const auto& copy) { return copy->holds(word); });
    if (found == copies.end()) continue;
    word = (*found)->moved(word);
    std::memcpy(arguments.data() + offset, &word, sizeof(word));
  }
  if (shape.blocks > 0) {
    kernels::cuda::launch_kernel(find(kernel), kernel.c_str(), shape.blocks, shape.threads, arguments, nullptr);
  }
  check(expect_driver().context_synchronize(), kernel.c_str());
  for (const auto& copy : copies) copy->bring_back(kernel);
}

}  // namespace plimsoll::ptx
