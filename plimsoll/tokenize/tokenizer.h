// Text to the ids of a model's vocabulary and back. A tokenizer may be used by several threads at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tokenize {

// In encode: the tokens that the model expects around a text (<bos>, </s>). In decode: the tokens that are no text.
enum class Specials { kWith, kWithout };

struct Decoded {
  std::string text;      // UTF-8
  bool complete = true;  // false while the last ids may be the beginning of a character
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are below this.
  virtual int64_t size() const = 0;
  // Special tokens that stand in the text are tokens with either choice. Throws io::Error for a text that is not UTF-8.
  virtual std::vector<int64_t> encode(std::string_view text, Specials specials = Specials::kWith) const = 0;
  // Ids that are no token are left out.
  virtual Decoded decode_part(std::span<const int64_t> ids, Specials specials) const = 0;
  // Throws io::Error for an id that is not in [0, size()).
  std::string decode(std::span<const int64_t> ids, Specials specials = Specials::kWithout) const {
    check_ids(ids);
    return decode_part(ids, specials).text;
  }
  void check_ids(std::span<const int64_t> ids) const;
  // Bytes that a token adds inside of a text. None for a special token, for an id that is no token, and for all tokens where
  // what one adds depends on others.
  virtual std::string bytes_of(int64_t) const { return {}; }
  // The same, and of a tokenizer whose other tokens depend on others, those of a token that is a byte.
  virtual std::string part_bytes_of(int64_t id) const { return bytes_of(id); }
  // Tokens as the vocabulary spells them.
  virtual std::optional<int64_t> token_to_id(std::string_view token) const = 0;
  virtual std::optional<std::string> id_to_token(int64_t id) const = 0;
  // The token that begins a text and the one that ends it, if the model has them.
  virtual std::optional<int64_t> bos() const = 0;
  virtual std::optional<int64_t> eos() const = 0;
};

}  // namespace plimsoll::tokenize
