#include "plimsoll/io/replace_directory.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/filesystem_errors.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

bool exchange(const fs::path& one, const fs::path& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) != 0) return false;
  sync_directory(other.parent_path());
  return true;
}

void replace_in_two_moves(const fs::path& from, const fs::path& to) {
  const fs::path replaced = replaced_name(to);
  fs::remove_all(replaced);
  rename_durably(to, replaced);
  try {
    rename_durably(from, to);
  } catch (...) {
    restore_replaced(to);
    throw;
  }
  fs::remove_all(replaced);
}

}  // namespace

fs::path replaced_name(const fs::path& to) { return to.native() + ".replaced"; }

void restore_replaced(const fs::path& to) {
  with_our_errors([&] {
    if (fs::exists(replaced_name(to)) && !fs::exists(to)) rename_durably(replaced_name(to), to);
  });
}

void replace_directory(const fs::path& from, const fs::path& to) {
  with_our_errors([&] {
    restore_replaced(to);
    if (!fs::exists(to)) return rename_durably(from, to);
    if (!exchange(from, to)) return replace_in_two_moves(from, to);
    fs::remove_all(from);
  });
}

}  // namespace plimsoll::io
