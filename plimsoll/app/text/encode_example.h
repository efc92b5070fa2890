// A conversation, a pair or a text as tokens, and which of them count.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/text/example.h"
#include "plimsoll/tokenize/chat_template.h"
#include "plimsoll/tokenize/fields.h"
#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::app {

enum class TrainOn : uint8_t {
  kAssistant,  // the assistant's messages, each with the token that ends it; the completion of a pair; a text
  kAll,        // every token but the first
};

// Tokens are those of the whole text, as transformers makes them. Those of a reply begin where the tokens of the text
// before it end; a token that begins before the reply and ends in it is the reply's.
class ExampleEncoder {
 public:
  // directory: of the model, with its chat template, which is read when the first conversation comes.
  ExampleEncoder(const tokenize::Tokenizer& tokenizer, std::filesystem::path directory, TrainOn train_on);

  struct Encoded {
    Example example;
    int64_t joined = 0;  // Examples
  };
  // Throws io::Error for a conversation that the template refuses, and for a model without a known template.
  Encoded chat(const std::vector<tokenize::ChatMessage>& messages);
  Encoded pair(const std::string& prompt, const std::string& completion) const;
  Encoded text(const std::string& text) const;
  // The conversation, the pair or the text of {"messages": [{"role", "content"}...]}, {"prompt", "completion"} or {"text"}; none
  // of an object with other members. Throws io::Error that names the object's place.
  std::optional<Encoded> object(const tokenize::Fields& fields);

 private:
  // The text's tokens and the one that ends a text.
  std::vector<int64_t> ended(const std::string& text) const;
  Encoded encoded(const std::vector<int64_t>& ids) const;
  // Lets the tokens of the bytes from `begin` to `end` count. specials: as the tokens were made.
  void count(Encoded& encoded, std::string_view text, tokenize::Range reply, tokenize::Specials specials) const;

  const tokenize::Tokenizer& tokenizer_;
  std::filesystem::path directory_;
  TrainOn train_on_;
  std::optional<tokenize::ChatTemplate> template_;
};

}  // namespace plimsoll::app
