// A text that a client wants, and how its tokens are chosen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/models/logits_rules.h"
#include "plimsoll/nn/sampler.h"
#include "plimsoll/serve/json/format.h"

namespace plimsoll::serve {

struct Request {
  std::vector<int64_t> prompt = {};
  std::string adapter = {};  // one of EngineOptions::adapters; empty: the model as it is
  int64_t max_new_tokens = 16;
  nn::SamplingOptions sampling = {.temperature = 0};
  models::LogitsRules rules = {};
  std::vector<int64_t> ends = {};                 // tokens that end the text
  std::shared_ptr<const JsonFormat> format = {};  // of JSON, after which the text ends; none: any text
  // The draws follow from both alone. A choice is one of several replies to one prompt.
  int64_t seed = 1, choice = 0;
  // Log probabilities are wanted: of each token, and of so many that the model found likeliest.
  std::optional<int64_t> top_log_probabilities = {};
};

struct LikelyToken {
  int64_t id = 0;
  double log_probability = 0;  // by the model, before rules and temperature
};

struct ReplyToken {
  LikelyToken token;  // the log probability is 0 where none is wanted
  bool ends_text = false;
  bool is_last = false;               // no token follows
  std::vector<LikelyToken> top = {};  // likeliest first
};

}  // namespace plimsoll::serve
