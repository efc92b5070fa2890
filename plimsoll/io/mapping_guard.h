// A mapped file that another process shortens, or whose disk fails, while it is read: an error instead of the end of
// this process (SIGBUS). Reads go on in zeros, and whoever uses what was read asks afterwards. That costs nothing where
// the bytes are read, in whatever thread and kernel that is, which an error cannot leave. Copies of all files would
// cost their size in memory and a pass over them before the first token.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace plimsoll::io {

// From here on SIGBUS inside `memory`, the mapping of the file `name`, is an error of check_mapped_files().
void guard_mapping(std::span<const std::byte> memory, const std::string& name);
// Before it is unmapped.
void forget_mapping(std::span<const std::byte> memory);

// Throws Error while there is a mapping whose file has lost bytes that were asked for. One atomic read otherwise. Asked
// by everything that hands on what it has made of a file's bytes.
void check_mapped_files();

// The same for bytes that the system is going to read, which tells of lost ones as of a bad address: of a mapping a
// byte of each page is read first.
void check_before_system_reads(std::span<const std::byte> bytes);

// Whether the first such read of a mapping is told on stderr at once, too: for those whose memory is read by others,
// who do not ask.
void tell_lost_bytes_on_stderr();

}  // namespace plimsoll::io
