// Statement after a switch over an enumeration. Each switch has a case for every enumerator that can come, without a
// default, so that the compiler names what a new enumerator misses.
#pragma once

namespace plimsoll::runtime {

// Ends the process with one line: `value` is none that `where` knows, a mistake of the library's own.
[[noreturn]] void unexpected(const char* where, int value);

}  // namespace plimsoll::runtime
