// Places in the program: addresses and stacks as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll::watch {

// "libplimsoll_python.so+0x4f21c, plimsoll::ops::linear(...)": for addr2line, and the function where it has a name.
std::string describe_address(uintptr_t address);

// The calls that led here, the innermost first, without the watch's own.
std::vector<std::string> backtrace();

}  // namespace plimsoll::watch
