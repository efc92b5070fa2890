// T5's tokens: the pieces of spiece.model, and after them the sentinels, <extra_id_0> last.
#pragma once

#include <optional>

#include "plimsoll/io/sentencepiece.h"

namespace plimsoll::io {

class T5Tokenizer {
 public:
  static constexpr int64_t kPad = 0, kEnd = 1, kUnknown = 2;

  // spiece.model and, if it is there, tokenizer_config.json (whose extra_ids, 100 by default, counts the sentinels).
  // Throws Error if it has more tokens than `vocabulary`, the rows of the model's embedding.
  T5Tokenizer(const std::filesystem::path& directory, int64_t vocabulary);

  // The ids of the text, with </s> at the end. <pad>, </s>, <unk> and sentinels in it are tokens; what stands between
  // them are texts of their own.
  std::vector<int64_t> encode(std::string_view text) const;
  // pad, </s>, <unk> and sentinels are left out.
  std::string decode(const std::vector<int64_t>& ids) const;

 private:
  struct Special {
    size_t bytes;
    int64_t id;
  };
  // The one that `text` starts with.
  std::optional<Special> special_at(std::string_view text) const;

  SentencePiece pieces_;
  int64_t sentinels_;
};

}  // namespace plimsoll::io
