// A sentencepiece model (spiece.model): text to ids and back, through Google's library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tokenize {

class SentencePiece {
 public:
  // Throws io::Error for a file that is missing or no such model.
  explicit SentencePiece(const std::filesystem::path& path);

  int64_t size() const;                           // pieces
  int64_t unknown_id() const;                     // of the piece for what no other piece covers
  std::string piece(int64_t id) const;            // id in [0, size())
  std::optional<char> byte_of(int64_t id) const;  // of a piece that is one
  std::optional<int64_t> find(std::string_view piece) const;
  std::vector<int64_t> encode(std::string_view text) const;
  // Ids outside [0, size()) are left out.
  std::string decode(std::span<const int64_t> ids) const;

 private:
  struct Processor;
  std::shared_ptr<const Processor> processor_;
};

}  // namespace plimsoll::tokenize
