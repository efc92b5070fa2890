// Bytes up to the first zero as tokenizer_config.json, the rest as spiece.model: a tokenizer whose ids are below the
// vocabulary and come back as text, or one line.
#include <algorithm>
#include <cstdlib>

#include "files.h"
#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace plimsoll;
  constexpr int64_t kVocabulary = 600;
  static const fuzz::Files files;
  const std::string_view all = fuzz::text_of(data, size);
  const size_t zero = std::min(all.find('\0'), all.size());
  files.write("tokenizer_config.json", all.substr(0, zero));
  files.write("spiece.model", all.substr(std::min(zero + 1, all.size())));
  try {
    const tokenize::T5Tokenizer tokenizer(files.path(), kVocabulary);
    const auto ids = tokenizer.encode("A fox <extra_id_0> \xff</s> über 狐 <extra_id_99999999999999999999>");
    for (const int64_t id : ids) {
      if (id < 0 || id >= kVocabulary) std::abort();
    }
    tokenizer.decode(ids);
  } catch (const io::Error& error) {
    fuzz::check_line(error.what());
  }
  return 0;
}
