#include "plimsoll/models/t5/beam_search.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace plimsoll::models {
namespace {

using Tokens = std::vector<int64_t>;

// Below every sum of log probabilities.
constexpr float kNoScore = -1e9f;

struct Beam {
  Tokens tokens;           // the start first
  Tokens origins;          // the beam, of the input's, that each token behind the start was appended to
  float score = kNoScore;  // the sum of log probabilities; once finished, over length^length_penalty
};

struct Candidate {
  int64_t beam = 0, token = 0;
  float score = 0;
};

bool better(const Beam& a, const Beam& b) { return a.score > b.score; }

// The search for one text.
class BeamSearch {
 public:
  BeamSearch(const T5Config& config, const T5GenerationOptions& options)
      : config_(config),
        options_(options),
        running_(static_cast<size_t>(options.beams), Beam{.tokens = {config.decoder_start_token_id}, .origins = {}}) {
    // At first all beams are the same text.
    running_.front().score = 0;
  }

  const std::vector<Beam>& running() const { return running_; }

  // From the candidates, best first, the next beams: the places that they come from.
  Tokens advance(const std::vector<Candidate>& candidates) {
    const auto length = static_cast<int64_t>(running_.front().tokens.size());  // of new tokens, with the next
    std::vector<Beam> next;
    Tokens places;
    ended_ = true;
    const bool open = may_improve_ && !(full() && options_.early_stopping == EarlyStopping::kFirstFull);
    for (size_t rank = 0; rank < candidates.size(); ++rank) {
      const Candidate& candidate = candidates[rank];
      const bool ends = candidate.token == config_.eos_token_id || length == options_.max_new_tokens;
      ended_ = ended_ && ends;
      Beam beam = running_[static_cast<size_t>(candidate.beam)];
      beam.score = candidate.score;
      beam.tokens.push_back(candidate.token);
      beam.origins.push_back(candidate.beam);
      if (!ends && next.size() < running_.size()) {
        next.push_back(std::move(beam));
        places.push_back(candidate.beam);
      } else if (ends && open && rank < running_.size()) {
        beam.score /= penalty(length);
        finished_.push_back(std::move(beam));
      }
    }
    std::stable_sort(finished_.begin(), finished_.end(), better);
    finished_.resize(std::min(finished_.size(), running_.size()));
    // Beams that nobody reads, where all candidates end.
    while (next.size() < running_.size()) {
      next.push_back({.tokens = Tokens(static_cast<size_t>(length) + 1, config_.pad_token_id), .origins = {}});
      places.push_back(static_cast<int64_t>(places.size()));
    }
    running_ = std::move(next);
    may_improve_ = may_improve_ && beats_worst_finished(length);
    return places;
  }

  bool may_improve() const { return may_improve_; }
  bool all_ended() const { return ended_; }
  bool full() const { return finished_.size() == running_.size(); }
  const std::vector<Beam>& best() const { return finished_; }

 private:
  float penalty(int64_t length) const {
    return static_cast<float>(std::pow(static_cast<double>(length), options_.length_penalty));
  }

  bool beats_worst_finished(int64_t length) const {
    const bool at_best = options_.early_stopping == EarlyStopping::kNever && options_.length_penalty > 0;
    const float possible = running_.front().score / penalty(at_best ? options_.max_new_tokens : length);
    return !full() || possible > finished_.back().score;
  }

  const T5Config& config_;
  const T5GenerationOptions& options_;
  std::vector<Beam> running_;   // best first
  std::vector<Beam> finished_;  // best first, at most as many as beams
  bool may_improve_ = true;
  bool ended_ = false;  // all candidates of the last step
};

// Log probabilities [texts * beams, vocabulary] under the rules.
at::Tensor scores_of(const at::Tensor& logits, const std::vector<BeamSearch>& searches,
                     const T5GenerationOptions& options, const int64_t& end) {
  at::Tensor scores = at::log_softmax(logits, -1);
  if (options.rules.change_nothing()) return scores;
  float* row = scores.mutable_data_ptr<float>();
  for (const BeamSearch& search : searches) {
    for (const Beam& beam : search.running()) {
      const auto new_tokens = static_cast<int64_t>(beam.tokens.size()) - 1;
      apply(options.rules, {.written = beam.tokens, .new_tokens = new_tokens, .ends = std::span(&end, 1)},
            {row, static_cast<size_t>(scores.size(1))});
      row += scores.size(1);
    }
  }
  return scores;
}

// The 2 * beams likeliest continuations of each text, best first: at least `beams` of them do not end it.
std::vector<std::vector<Candidate>> candidates_of(const at::Tensor& scores, const std::vector<BeamSearch>& searches) {
  const auto texts = static_cast<int64_t>(searches.size());
  const int64_t beams = scores.size(0) / texts, vocabulary = scores.size(1);
  at::Tensor before = at::empty({scores.size(0), 1});
  float* score = before.mutable_data_ptr<float>();
  for (const BeamSearch& search : searches) {
    for (const Beam& beam : search.running()) *score++ = beam.score;
  }
  const at::Tensor total = (scores + before).view({texts, beams * vocabulary});
  const auto [values, places] = at::topk(total, std::min(2 * beams, beams * vocabulary), 1);
  std::vector<std::vector<Candidate>> result(searches.size());
  const int64_t count = values.size(1);
  for (size_t text = 0; text < searches.size(); ++text) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = static_cast<int64_t>(text) * count + i, place = places.const_data_ptr<int64_t>()[index];
      result[text].push_back({place / vocabulary, place % vocabulary, values.const_data_ptr<float>()[index]});
    }
  }
  return result;
}

// As Hugging Face decides it, for the whole batch at once.
bool done(const std::vector<BeamSearch>& searches, EarlyStopping early_stopping) {
  const auto all = [&](auto&& is) { return std::all_of(searches.begin(), searches.end(), is); };
  return all([](const BeamSearch& search) { return !search.may_improve(); }) ||
         all([](const BeamSearch& search) { return search.all_ended(); }) ||
         (early_stopping == EarlyStopping::kFirstFull && all([](const BeamSearch& search) { return search.full(); }));
}

// Adds the inputs some of whose logits [rows, vocabulary] are Inf or NaN. Theirs become 0, which a search goes on with.
void take_out_not_finite(at::Tensor& logits, int64_t beams, std::set<int64_t>& inputs) {
  const auto vocabulary = static_cast<size_t>(logits.size(1));
  float* row = logits.mutable_data_ptr<float>();
  for (int64_t i = 0; i < logits.size(0); ++i, row += vocabulary) {
    if (are_finite({row, vocabulary})) continue;
    inputs.insert(i / beams);
    std::fill_n(row, vocabulary, 0.0f);
  }
}

// Leaves the texts of the inputs `without` empty.
T5Generated best_of(const std::vector<BeamSearch>& searches, const T5Config& config, int64_t sequences,
                    const std::set<int64_t>& without) {
  size_t longest = 1;
  const auto count = static_cast<size_t>(sequences);
  for (const BeamSearch& search : searches) {
    for (size_t i = 0; i < std::min(count, search.best().size()); ++i) {
      longest = std::max(longest, search.best()[i].tokens.size());
    }
  }
  const auto width = static_cast<int64_t>(longest), texts = static_cast<int64_t>(searches.size());
  // Hugging Face writes `pad_token_id or eos_token_id`, so a pad of 0, which is T5's, gives eos.
  const int64_t behind = config.pad_token_id != 0 ? config.pad_token_id : config.eos_token_id;
  T5Generated result{.sequences = at::full({texts * sequences, width}, behind, at::kLong),
                     .sequence_scores = at::full({texts * sequences}, kNoScore, at::kFloat),
                     .beam_indices = at::full({texts * sequences, width - 1}, -1, at::kInt)};
  result.sequences.select(1, 0).fill_(config.decoder_start_token_id);
  int64_t* tokens = result.sequences.mutable_data_ptr<int64_t>();
  int32_t* indices = result.beam_indices.mutable_data_ptr<int32_t>();
  float* score = result.sequence_scores.mutable_data_ptr<float>();
  for (size_t text = 0; text < searches.size(); ++text) {
    const std::vector<Beam>& best = searches[text].best();
    const auto first = static_cast<int64_t>(text * searches[text].running().size());
    for (size_t i = 0; i < count; ++i, tokens += width, indices += width - 1, ++score) {
      if (i >= best.size() || without.contains(static_cast<int64_t>(text))) continue;
      std::copy(best[i].tokens.begin(), best[i].tokens.end(), tokens);
      std::transform(best[i].origins.begin(), best[i].origins.end(), indices,
                     [&](int64_t beam) { return static_cast<int32_t>(first + beam); });
      *score = best[i].score;
    }
  }
  return result;
}

}  // namespace

T5Generated beam_search(T5ForConditionalGenerationImpl& model, const T5Encoded& encoded,
                        const T5GenerationOptions& options) {
  const int64_t texts = encoded.hidden.size(0), beams = options.beams;
  std::vector<BeamSearch> searches(static_cast<size_t>(texts), BeamSearch(model.config, options));
  T5Cache cache = model.start(encoded, beams, std::max<int64_t>(options.max_new_tokens, 1));
  at::Tensor tokens = at::full({texts * beams, 1}, model.config.decoder_start_token_id, at::kLong);
  const at::Tensor in_place = at::arange(texts * beams, at::kLong);
  std::vector<at::Tensor> kept;
  std::set<int64_t> not_finite;
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    at::Tensor logits = model.extend(tokens, cache).contiguous();
    take_out_not_finite(logits, beams, not_finite);
    const at::Tensor scores = scores_of(logits, searches, options, model.config.eos_token_id);
    if (options.keeps_scores) kept.push_back(scores);
    const auto candidates = candidates_of(scores, searches);
    at::Tensor places = at::empty({texts * beams}, at::kLong);
    int64_t* place = places.mutable_data_ptr<int64_t>();
    int64_t* token = tokens.mutable_data_ptr<int64_t>();
    for (size_t text = 0; text < searches.size(); ++text) {
      for (const int64_t beam : searches[text].advance(candidates[text])) {
        *place++ = static_cast<int64_t>(text) * beams + beam;
      }
      for (const Beam& beam : searches[text].running()) *token++ = beam.tokens.back();
    }
    if (done(searches, options.early_stopping)) break;
    if (!places.equal(in_place)) cache.reorder(places);
  }
  T5Generated result = best_of(searches, model.config, options.sequences, not_finite);
  result.scores = std::move(kept);
  result.not_finite = std::move(not_finite);
  return result;
}

}  // namespace plimsoll::models
