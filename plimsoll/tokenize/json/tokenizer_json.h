// The tokenizer.json of Hugging Face's `tokenizers`, of models that pair bytes: GPT-2, Pythia, Llama 3, Qwen, Gemma,
// SmolLM2 and their kin. Ids and text are those of that library (docs/tokenizers.md).
#pragma once

#include <filesystem>
#include <memory>

#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::tokenize {

class TokenizerJson final : public Tokenizer {
 public:
  // Reads tokenizer.json and, if it is there, what tokenizer_config.json says of bos_token and eos_token. Throws
  // io::Error, one line that names the file and the place in it.
  explicit TokenizerJson(const std::filesystem::path& directory);
  ~TokenizerJson() override;

  int64_t size() const override;
  std::vector<int64_t> encode(std::string_view text, Specials specials = Specials::kWith) const override;
  Decoded decode_part(std::span<const int64_t> ids, Specials specials) const override;
  std::string bytes_of(int64_t id) const override;
  std::optional<int64_t> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(int64_t id) const override;
  std::optional<int64_t> bos() const override { return bos_; }
  std::optional<int64_t> eos() const override { return eos_; }

 private:
  struct Pipeline;
  struct Workplace;
  class Borrowed;
  // The token as the decoder gets it.
  std::optional<std::string> shown(int64_t id, Specials specials) const;
  void read_config(const std::filesystem::path& path);

  std::unique_ptr<Pipeline> pipeline_;
  std::optional<int64_t> bos_, eos_;
};

}  // namespace plimsoll::tokenize
