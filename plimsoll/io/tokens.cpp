#include "plimsoll/io/tokens.h"

#include <algorithm>
#include <vector>

namespace plimsoll::io {

void ByteTokens::read(int64_t begin, std::span<int64_t> output) const {
  std::vector<std::byte> bytes(output.size());
  text_.read(begin, bytes);
  std::transform(bytes.begin(), bytes.end(), output.begin(), [](std::byte byte) { return static_cast<int64_t>(byte); });
}

}  // namespace plimsoll::io
