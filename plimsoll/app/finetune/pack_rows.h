// Short texts in rows of one length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plimsoll::app {

// Texts of each row, in the order in which they stand there.
using Rows = std::vector<std::vector<size_t>>;

// Best fit: texts of these lengths, the longest first, each go to the fullest row that has room for them, the first of
// several, or begin a new row. No length is above `capacity`.
Rows pack_rows(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace plimsoll::app
