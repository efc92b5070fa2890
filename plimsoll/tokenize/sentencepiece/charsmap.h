// The precompiled_charsmap of a sentencepiece model: texts that are replaced before the library looks for pieces.
//   [bytes of the trie: uint32] [trie: uint32 units] [replacements, each ended by a zero byte]
// The trie is a Darts-clone double array, whose units are, by bit (github.com/s-yata/darts-clone):
//   0-7 label, 8 whether a leaf follows, 9 whether the offset counts 256 units, 10-30 offset; or, of a leaf, 31 set and
//   0-30 value.
// From unit p, `p ^ offset` is where its children begin: the child of byte c is unit `(p ^ offset) ^ c` if its label is
// c, the leaf is the unit `p ^ offset` itself. The library walks it without bounds (sentencepiece/src/normalizer.cc),
// and takes the value of a leaf for a place among the replacements.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace plimsoll::tokenize {

// Bytes of the longest replacement of a charsmap that the library can use with any text. `name` opens the error.
// Throws io::Error if some text would lead the library out of the trie or of the replacements, to a loop, or past more than
// 32 matches, for which it has room; and for a replacement of more than 256 bytes.
size_t check_charsmap(std::string_view charsmap, const std::string& name);

}  // namespace plimsoll::tokenize
