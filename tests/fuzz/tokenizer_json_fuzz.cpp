// Bytes up to the first zero as tokenizer.json, the rest as a text: ids below the vocabulary's size that come back as
// UTF-8, whole or one by one, or one line.
#include <algorithm>
#include <cstdlib>

#include "files.h"
#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/decode_stream.h"
#include "plimsoll/tokenize/json/tokenizer_json.h"
#include "plimsoll/tokenize/utf8.h"

namespace {

void check_text(std::string_view text) {
  if (plimsoll::tokenize::valid_bytes(text) != text.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace plimsoll;
  static const fuzz::Files files;
  const std::string_view all = fuzz::text_of(data, size);
  const size_t zero = std::min(all.find('\0'), all.size());
  files.write("tokenizer.json", all.substr(0, zero));
  try {
    const tokenize::TokenizerJson tokenizer(files.path());
    const auto ids = tokenizer.encode(all.substr(std::min(zero + 1, all.size())));
    tokenize::DecodeStream stream(tokenizer, tokenize::Specials::kWith);
    for (const int64_t id : ids) {
      if (id < 0 || id >= tokenizer.size()) std::abort();
      check_text(stream.next(id));
    }
    check_text(stream.finish());
    check_text(tokenizer.decode(ids));
  } catch (const io::Error& error) {
    fuzz::check_line(error.what());
  }
  return 0;
}
