// A spiece.model before Google's library sees it. The library believes the file: it walks the tables in it without
// bounds, writes past arrays of fixed size and calls itself once for each byte of a piece. What would lead it there is
// refused here.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace plimsoll::tokenize {

// Largest growth of a text or of ids under a model, which bounds the memory that the library needs.
struct SentencePieceSizes {
  size_t encoded_growth =
      3;  // bytes that a byte of text becomes at most before pieces are looked for; a space becomes three
  size_t decoded_growth = 1;  // bytes that a byte of the pieces' texts becomes at most
  size_t longest_piece = 0;   // bytes; what is written for the unknown is counted, too
};

struct SentencePieceModel {
  std::string bytes;  // what the library may load: the file without its self-test
  SentencePieceSizes sizes;
};

// Throws io::Error for a file that is missing, larger than 64 MiB or no model (src/sentencepiece_model.proto), and for a
// model with more than 2^20 pieces, a piece of more than 1024 bytes, a score that is not finite, more than 64
// user-defined pieces of which each begins with the one before, or a charsmap that check_charsmap refuses.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

}  // namespace plimsoll::tokenize
