// `plimsoll t5` as functions: a T5 generates, scores or encodes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/models/t5/generation.h"
#include "plimsoll/models/t5/load.h"

namespace plimsoll::app {

struct T5Options {
  std::filesystem::path model;  // a Hugging Face directory
  std::string input;            // T5Texts::read
  std::string target;           // score: as input, one for each
  std::string bad_words;        // generate: as input, texts that are not written; empty: none
  models::T5Dtype dtype = models::T5Dtype::kAsStored;
  models::T5Numerics numerics = models::T5Fixes::seed();  // of fp16
  int64_t batch = 8;                                      // inputs at a time
  models::T5GenerationOptions generation;
  std::filesystem::path out;                      // encode: a safetensors file for the encoder's outputs
  models::Warn warn = [](const std::string&) {};  // of load_t5
};

struct T5Written {
  int64_t input = 0;  // its number, from 0
  std::vector<int64_t> ids;
  std::optional<std::string> text = {};  // none without a tokenizer
  std::optional<double> score;           // of beams: log probability / length^length_penalty
  bool finite = true;                    // else some logits were Inf or NaN, and the text ends before them
};
// Each text in the order of the inputs. A `stream` is called with the pieces of one text as they are written, inputs
// one at a time. Throws Error or UsageError.
void t5_generate(const T5Options& options, const std::function<void(const T5Written&)>& sink,
                 const std::function<void(const std::string&)>& stream = {});

struct T5Score {
  int64_t input = 0;
  int64_t tokens = 0;          // of the target, </s> among them
  double log_probability = 0;  // of the target, given the input: a sum over its tokens
};
void t5_score(const T5Options& options, const std::function<void(const T5Score&)>& sink);

struct T5Encoding {
  int64_t input = 0;
  int64_t tokens = 0;
  double rms = 0;
  double amax = 0;
};
// The encoder's outputs go to options.out as "input.N" [tokens, d_model], fp32.
void t5_encode(const T5Options& options, const std::function<void(const T5Encoding&)>& sink);

}  // namespace plimsoll::app
