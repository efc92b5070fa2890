// T5's tokens: the pieces of spiece.model, and after them the sentinels, <extra_id_0> last.
#pragma once

#include <optional>

#include "plimsoll/tokenize/sentencepiece/sentencepiece.h"
#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::tokenize {

class T5Tokenizer final : public Tokenizer {
 public:
  // The id of <unk> is that of spiece.model: 2 where there is no <s>, as in T5's.
  static constexpr int64_t kPad = 0, kEnd = 1;

  // spiece.model and, if it is there, tokenizer_config.json (whose extra_ids, 100 by default, counts the sentinels).
  // Throws io::Error if it has more tokens than `vocabulary`, the rows of the model's embedding.
  T5Tokenizer(const std::filesystem::path& directory, int64_t vocabulary);

  int64_t size() const override { return pieces_.size() + sentinels_; }
  // The ids of the text, and </s>. <pad>, </s>, <unk> and sentinels in it are tokens; what stands between them are texts
  // of their own.
  std::vector<int64_t> encode(std::string_view text, Specials specials = Specials::kWith) const override;
  // Without specials, pad, </s>, <unk> and sentinels are left out.
  Decoded decode_part(std::span<const int64_t> ids, Specials specials) const override;
  std::string part_bytes_of(int64_t id) const override;
  std::optional<int64_t> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(int64_t id) const override;
  std::optional<int64_t> bos() const override { return std::nullopt; }
  std::optional<int64_t> eos() const override { return kEnd; }

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

}  // namespace plimsoll::tokenize
