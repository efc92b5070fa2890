// A model that writes text: token after token, each drawn from what the model expects next.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/app/text/text_format.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/models/decoding.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::app {

// computed: in the dtype that attention computes with, the recipe's or that of the weights.
inline constexpr std::array<recipe::Named<nn::CacheFormat>, 3> kCacheFormats = {
    {{"computed", nn::CacheFormat::kAsGiven}, {"bf16", nn::CacheFormat::kBf16}, {"fp8", nn::CacheFormat::kE4m3}}};

using models::TextEnd;

struct WritingOptions {
  nn::SamplingOptions sampling = {};
  models::LogitsRules rules = {};       // the repetition penalty, of the prompt's tokens, too
  std::vector<std::string> stops = {};  // texts that end a text and are not shown
  int64_t max_new_tokens = 200;
  int64_t seed = 1;
  nn::CacheFormat cache = nn::CacheFormat::kAsGiven;  // of the keys and values of the text
  std::shared_ptr<TextFormat> format = {};            // none: any text
};

struct WrittenToken {
  int64_t id = 0;
  double log_probability = 0;  // by the model, before rules and temperature
};

// Receivers of a text while it is written. What is empty is not called.
struct TextObserver {
  std::function<void(std::string_view)> on_text = {};  // whole characters
  std::function<void(const WrittenToken&)> on_token = {};
  std::function<bool()> interrupted = {};  // asked before each token
};

struct WrittenText {
  std::string text;         // what was shown
  int64_t tokens = 0;       // drawn, the one that ends the text among them
  int64_t read_tokens = 0;  // of the prompt, those that had not been read before
  TextEnd end = TextEnd::kLength;
};

class TextWriter {
 public:
  // The model has to outlive the writer. Of equal seeds the first text, the second and so on are equal.
  TextWriter(const TextModel& model, WritingOptions options);

  TextWriter(const TextWriter&) = delete;  // decoding_ knows where it is
  TextWriter& operator=(const TextWriter&) = delete;

  // Continues a prompt, which is not empty: all that stands before. What the model has read of it already, it does not
  // read again. Text beyond the model's context goes on from the last half of the context. limit: of the new tokens, if
  // below options.max_new_tokens.
  WrittenText write(const std::vector<int64_t>& prompt, const TextObserver& observer);
  WrittenText write(const std::vector<int64_t>& prompt, const TextObserver& observer, int64_t limit);

 private:
  const TextModel& model_;
  WritingOptions options_;
  uint64_t draws_ = 0;
  models::Decoding decoding_;
};

}  // namespace plimsoll::app
