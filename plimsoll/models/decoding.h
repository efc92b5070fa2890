// Texts that a decoder-only model writes together, a token of each in a step: the likeliest, or a draw.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "plimsoll/models/language_model.h"
#include "plimsoll/models/logits_rules.h"
#include "plimsoll/nn/sampler.h"

namespace plimsoll::models {

struct DecodingOptions {
  nn::SamplingOptions sampling = {};
  // A number in [0, 1) for the draw of a text's next token, its new_tokens-th from 0 on. Without it no token is drawn:
  // the likeliest is taken.
  std::function<double(int64_t text, int64_t new_tokens)> uniform = {};
  LogitsRules rules = {};                   // they see the prompt, too
  std::vector<int64_t> eos_token_ids = {};  // each ends a text
  nn::CacheFormat cache = nn::CacheFormat::kAsGiven;
  // The tokens that may follow a text, a bit each, of which the rules may ban more. Without it: all.
  std::function<std::vector<uint64_t>(int64_t text)> allowed = {};
};

enum class TextEnd : uint8_t {
  kLength,  // as many new tokens as were asked for
  kToken,   // one that ends a text
  kStop,    // the one who hears the tokens has said so
  kInterrupted,
  kNotFinite,  // the logits are Inf or NaN
};

struct NewToken {
  int64_t text, id;
  bool ends_text;                 // as one of the eos_token_ids
  std::span<const float> logits;  // [vocabulary], by the model, before the rules
};

// Texts of unlike lengths share a cache, and each has the tokens that it has alone.
class Decoding {
 public:
  // The model must outlive it.
  Decoding(LanguageModel& model, DecodingOptions options);

  // Begins texts with prompts, none of them empty, each to be continued by as many tokens as the model's context has room
  // for. Prompts that go on with the texts before them are not read again. Returns the tokens that are to be read.
  int64_t begin(std::vector<std::vector<int64_t>> prompts, int64_t max_new_tokens);

  bool done() const;
  // Writes a token of each text that has not ended. sink, if there is one, hears it and says whether it ends the text. What
  // the model throws leaves the texts as they were: the next step reads all of them again.
  void step(const std::function<bool(const NewToken&)>& sink = {});

  const std::vector<int64_t>& text(int64_t index) const { return texts_[static_cast<size_t>(index)]; }
  // The end of a text; kLength, too, of one that has not ended.
  TextEnd end(int64_t index) const { return ends_[static_cast<size_t>(index)].value_or(TextEnd::kLength); }

 private:
  int64_t unread(size_t text) const;
  at::Tensor read();  // the logits [texts, vocabulary] of what follows

  LanguageModel& model_;
  DecodingOptions options_;
  TokenCache cache_;
  std::vector<std::vector<int64_t>> texts_;
  std::vector<std::optional<TextEnd>> ends_;
  int64_t max_new_tokens_ = 0, new_tokens_ = 0;
};

}  // namespace plimsoll::models
