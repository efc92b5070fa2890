#include "plimsoll/tokenize/tokenizer.h"

#include "plimsoll/io/error.h"

namespace plimsoll::tokenize {

void Tokenizer::check_ids(std::span<const int64_t> ids) const {
  for (const int64_t id : ids) {
    if (id < 0 || id >= size()) io::fail("tokenizer: expected ids of 0 to {}, got {}", size() - 1, id);
  }
}

}  // namespace plimsoll::tokenize
