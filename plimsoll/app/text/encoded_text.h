// Files as the ids of a tokenizer, to train on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "plimsoll/io/tokens.h"
#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::app {

// The ids of each file, and after each file the token that ends a text, if the tokenizer has one. Four bytes of memory a
// token.
class EncodedText final : public io::Tokens {
 public:
  // Throws io::Error that names the file.
  EncodedText(const std::vector<std::filesystem::path>& files, const tokenize::Tokenizer& tokenizer);

  int64_t count() const override { return static_cast<int64_t>(ids_.size()); }
  std::string digest() const override;
  void read(int64_t begin, std::span<int64_t> output) const override;

 private:
  std::vector<int32_t> ids_;
};

}  // namespace plimsoll::app
