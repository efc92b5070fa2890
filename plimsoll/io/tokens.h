// The tokens of a long text.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "plimsoll/io/text.h"

namespace plimsoll::io {

class Tokens {
 public:
  virtual ~Tokens() = default;
  virtual int64_t count() const = 0;
  // SHA-256 of what they are made of.
  virtual std::string digest() const = 0;
  // Copies the tokens from `begin` on; the range must lie inside the text.
  virtual void read(int64_t begin, std::span<int64_t> output) const = 0;
};

// Each byte of a text is a token.
class ByteTokens final : public Tokens {
 public:
  explicit ByteTokens(Text text) : text_(std::move(text)) {}
  int64_t count() const override { return text_.bytes(); }
  std::string digest() const override { return text_.digest(); }
  void read(int64_t begin, std::span<int64_t> output) const override;

 private:
  Text text_;
};

}  // namespace plimsoll::io
