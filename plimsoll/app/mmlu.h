// What `plimsoll mmlu` does: a T5 in several dtypes answers the user's multiple-choice questions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/models/t5/overflowed_weights.h"

namespace plimsoll::app {

struct MmluOptions {
  std::filesystem::path model;                         // a Hugging Face directory of a T5 with its spiece.model
  std::filesystem::path data;                          // read_mmlu
  std::vector<std::string> dtypes = {"fp32", "fp16"};  // the names of models::T5Dtype
  std::string fixes = "seed";                          // of fp16: models::parse_t5_fixes
  int64_t shots = 5;                                   // examples before a question
  int64_t max_tokens = 2048;                           // of a prompt: fewer examples are given where it would have more
  int64_t batch = 8;                                   // questions at a time
  models::Warn warn = [](const std::string&) {};       // of load_t5
};

// An answer is the letter whose token is the likeliest to be written first; where its logits are not finite there is
// none. {"questions", "shots", "shortened": questions with fewer, "dtypes": {name: {...}}}, of each dtype
//   accuracy: binomial_json,
//   agreement: of the answers with those of the first dtype, binomial_json,
//   no_answer: questions whose logits are not finite,
//   subjects: {name: binomial_json}.
nlohmann::json mmlu(const MmluOptions& options);

}  // namespace plimsoll::app
