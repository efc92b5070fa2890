// `plimsoll mmlu` as a function: a T5 in several dtypes answers the user's multiple-choice questions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "plimsoll/models/t5/fixes.h"
#include "plimsoll/models/t5/load.h"

namespace plimsoll::app {

struct MmluOptions {
  std::filesystem::path model;  // a Hugging Face directory of a T5 with its spiece.model
  std::filesystem::path data;   // read_mmlu
  std::vector<models::T5Dtype> dtypes = {models::T5Dtype::kFp32, models::T5Dtype::kFp16};
  models::T5Numerics numerics = models::T5Fixes::seed();  // of fp16
  int64_t shots = 5;                                      // examples before a question
  int64_t max_tokens = 2048;                      // of a prompt: fewer examples are given where it would have more
  int64_t batch = 8;                              // questions at a time
  models::Warn warn = [](const std::string&) {};  // of load_t5
};

// An answer is the letter whose token is the likeliest to be written first; where its logits are not finite there is
// none. {"questions", "shots", "shortened": questions with fewer, "dtypes": {name: {...}}}, of each dtype
//   accuracy: binomial_json,
//   agreement: of the answers with those of the first dtype, binomial_json,
//   no_answer: questions whose logits are not finite,
//   subjects: {name: binomial_json}.
nlohmann::json mmlu(const MmluOptions& options);

}  // namespace plimsoll::app
