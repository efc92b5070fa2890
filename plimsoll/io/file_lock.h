// Locks of whole files, flock(2): they end when the file is closed, and so with the process.
#pragma once

#include <filesystem>

namespace plimsoll::io {

// False where another open file has the lock. True, too, where the file system has no locks.
bool lock_unless_held(int file);

// True if this process has the lock now; false where another open file has it or where the file system has no locks.
bool lock_for_certain(int file);

// Whether the open file is what stands under that name. A lock on a file counts only while it is.
bool still_has_name(int file, const std::filesystem::path& name);

}  // namespace plimsoll::io
