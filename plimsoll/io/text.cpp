#include "plimsoll/io/text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "plimsoll/io/sha256.h"

namespace plimsoll::io {

Text::Text(const std::vector<std::filesystem::path>& files) : starts_{0} {
  constexpr size_t kSmallBytes = size_t{1} << 20;
  for (const std::filesystem::path& path : files) {
    MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    if (bytes.empty()) continue;
    starts_.push_back(starts_.back() + static_cast<int64_t>(bytes.size()));
    if (bytes.size() > kSmallBytes) {
      pieces_.emplace_back(std::move(file));
    } else {
      pieces_.emplace_back(std::vector<std::byte>(bytes.begin(), bytes.end()));
    }
  }
}

std::string Text::digest() const {
  Sha256 sha256;
  for (const Piece& piece : pieces_) sha256.add(bytes_of(piece));
  return sha256.digits();
}

void Text::read(int64_t begin, std::span<std::byte> output) const {
  auto index = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1);
  auto offset = static_cast<size_t>(begin - starts_[index]);
  while (!output.empty()) {
    const std::span<const std::byte> source = bytes_of(pieces_[index]).subspan(offset);
    const size_t count = std::min(output.size(), source.size());
    std::memcpy(output.data(), source.data(), count);
    output = output.subspan(count);
    ++index;
    offset = 0;
  }
}

std::span<const std::byte> Text::bytes_of(const Piece& piece) {
  if (const auto* file = std::get_if<MappedFile>(&piece)) return file->bytes();
  return std::get<std::vector<std::byte>>(piece);
}

}  // namespace plimsoll::io
