#include "plimsoll/app/text/encoded_text.h"

#include <algorithm>
#include <string_view>

#include "plimsoll/io/error.h"
#include "plimsoll/io/mapped_file.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/io/sha256.h"

namespace plimsoll::app {

EncodedText::EncodedText(const std::vector<std::filesystem::path>& files, const tokenize::Tokenizer& tokenizer) {
  for (const std::filesystem::path& path : files) {
    const io::MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    try {
      for (const int64_t id : tokenizer.encode(text, tokenize::Specials::kWithout)) {
        ids_.push_back(static_cast<int32_t>(id));
      }
    } catch (const io::Error& error) {
      io::fail("{}: {}", path.native(), std::string(error.what()));
    }
    if (const auto end = tokenizer.eos(); end && !text.empty()) ids_.push_back(static_cast<int32_t>(*end));
  }
  io::check_mapped_files();
}

std::string EncodedText::digest() const { return io::sha256(std::as_bytes(std::span(ids_))); }

void EncodedText::read(int64_t begin, std::span<int64_t> output) const {
  std::copy_n(ids_.begin() + begin, output.size(), output.begin());
}

}  // namespace plimsoll::app
