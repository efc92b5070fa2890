// The tokenizer of a model's directory, of whatever kind it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::tokenize {

// Reads tokenizer.json, or else spiece.model; a model without both whose vocabulary are the 256 bytes has bytes.
// vocabulary: rows of the model's embedding. Throws io::Error for a directory with none of these.
std::unique_ptr<Tokenizer> load(const std::filesystem::path& directory, int64_t vocabulary);

}  // namespace plimsoll::tokenize
