// A format that a text is written in, token by token.
#pragma once

#include <cstdint>
#include <vector>

namespace plimsoll::app {

class TextFormat {
 public:
  virtual ~TextFormat() = default;
  virtual void begin() = 0;  // another text
  // The tokens that may follow, a bit each, those that end a text among them.
  virtual std::vector<uint64_t> allowed() const = 0;
  // A token that follows and does not end the text. Returns whether the text is whole, so that it ends.
  virtual bool add(int64_t token) = 0;
};

}  // namespace plimsoll::app
