#include "plimsoll/tokenize/load.h"

#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/tokenize/byte_tokenizer.h"
#include "plimsoll/tokenize/json/tokenizer_json.h"
#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

namespace plimsoll::tokenize {

std::unique_ptr<Tokenizer> load(const std::filesystem::path& directory, int64_t vocabulary) {
  const auto has = [&](const char* name) {
    return io::with_our_errors([&] { return std::filesystem::exists(directory / name); });
  };
  if (has("tokenizer.json")) return std::make_unique<TokenizerJson>(directory);
  if (has("spiece.model")) return std::make_unique<T5Tokenizer>(directory, vocabulary);
  if (vocabulary == kByteVocabulary) return std::make_unique<ByteTokenizer>();
  if (has("tokenizer.model") || has("vocab.json")) {
    io::fail(
        "{}: expected tokenizer.json or spiece.model, got an older tokenizer alone; transformers writes tokenizer.json: "
        "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)",
        directory.native());
  }
  io::fail("{}: expected tokenizer.json, spiece.model or a vocabulary of {} bytes, got neither file and {} tokens",
           directory.native(), kByteVocabulary, vocabulary);
}

}  // namespace plimsoll::tokenize
