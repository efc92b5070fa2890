// Memory that nobody has touched.
#pragma once

#include <cstddef>

namespace plimsoll::app {

class FreshPages {
 public:
  enum class Size { kSmall, kHuge };

  // Throws std::bad_alloc.
  FreshPages(size_t bytes, Size size);
  ~FreshPages();
  FreshPages(const FreshPages&) = delete;
  FreshPages& operator=(const FreshPages&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  size_t bytes_;
};

}  // namespace plimsoll::app
