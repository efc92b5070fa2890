// Whether an exception says that the system has no memory. Torch's allocator throws a plain c10::Error, which only its
// words tell from others. Alike in torch 2.11 and 2.13.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string_view>

namespace plimsoll::ops {

inline bool is_lack_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr && of_torch->msg().find("DefaultCPUAllocator: ") != std::string_view::npos &&
         of_torch->msg().find("memory") != std::string_view::npos;
}

}  // namespace plimsoll::ops
