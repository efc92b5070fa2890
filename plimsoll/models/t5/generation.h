// Ways in which a T5 writes text: the likeliest token at each step, a draw, or the best of several beams.
#pragma once

#include <array>
#include <functional>
#include <set>

#include "plimsoll/models/logits_rules.h"
#include "plimsoll/models/t5/model.h"
#include "plimsoll/nn/sampler.h"

namespace plimsoll::models {

enum class EarlyStopping : uint8_t {
  kHeuristic,  // when no beam, ended where it is, would beat the worst of the finished
  kFirstFull,  // when as many texts as beams are finished
  kNever,      // when no beam could, even at its best length
};

inline constexpr std::array<recipe::Named<EarlyStopping>, 3> kEarlyStoppings = {
    {{"heuristic", EarlyStopping::kHeuristic}, {"first", EarlyStopping::kFirstFull}, {"never", EarlyStopping::kNever}}};

// Defaults and meaning are those of Hugging Face's GenerationConfig.
struct T5GenerationOptions {
  int64_t max_new_tokens = 20;
  bool samples = false;
  nn::SamplingOptions sampling = nn::kUsualSampling;
  int64_t seed = 0;             // of the draws
  int64_t beams = 1;            // more than one: a beam search, which does not draw
  double length_penalty = 1.0;  // a text's score is the sum of its log probabilities / length^length_penalty
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  int64_t sequences = 1;  // texts for each input: of the beams, or drawn
  LogitsRules rules = {};
  bool keeps_scores = false;
};

// An error that names the option at fault.
void check(const T5GenerationOptions& options, const T5Config& config);

// Called after each step with int64 [rows]: the tokens written, pad where a row has ended. Not with beams.
using T5TokenSink = std::function<void(const at::Tensor& tokens)>;

struct T5Generated {
  // int64 [batch * sequences, length]: decoder_start_token_id, what was written, pad behind eos (with beams eos, where
  // pad is 0).
  at::Tensor sequences;
  // With keeps_scores, of each step fp32 [rows, vocab_size]: logits, with beams log probabilities, under the rules; where
  // tokens are drawn, over the temperature, and -Inf for those that cannot be.
  std::vector<at::Tensor> scores = {};
  at::Tensor sequence_scores = {};  // with beams, fp32 [batch * sequences]
  at::Tensor beam_indices = {};     // with beams, int32 [batch * sequences, length - 1]: of `rows`, -1 behind the end
  // The inputs for which the model's logits were Inf or NaN: their texts end there; with beams they are empty.
  std::set<int64_t> not_finite = {};
};

// An attention_mask that is undefined leaves out nothing.
T5Generated generate(T5ForConditionalGenerationImpl& model, const at::Tensor& input_ids,
                     const at::Tensor& attention_mask, const T5GenerationOptions& options,
                     const T5TokenSink& sink = {});

// Without a beam: one step at a time.
class T5Decoding {
 public:
  // The model must outlive it.
  T5Decoding(T5ForConditionalGenerationImpl& model, const T5Encoded& encoded, const T5GenerationOptions& options);

  bool done() const;
  // int64 [rows], as T5TokenSink.
  at::Tensor step();
  const std::set<int64_t>& not_finite() const { return not_finite_; }  // as T5Generated
  // The texts of all steps so far.
  T5Generated generated() const;

 private:
  void end_rows_without_finite_logits(const at::Tensor& logits);
  void apply_rules(at::Tensor& logits) const;
  // int64 [rows]. With keeps_scores, makes the scores those of the draws.
  at::Tensor draw(at::Tensor& scores) const;

  T5ForConditionalGenerationImpl& model_;
  T5GenerationOptions options_;
  T5Cache cache_;
  std::vector<at::Tensor> tokens_;  // int64 [rows] of each step, the start first
  std::vector<at::Tensor> scores_;  // as T5Generated
  at::Tensor ended_;                // bool [rows]
  std::set<int64_t> not_finite_;
};

}  // namespace plimsoll::models
