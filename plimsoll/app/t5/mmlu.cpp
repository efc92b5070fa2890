#include "plimsoll/app/t5/mmlu.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "plimsoll/app/binomial.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/t5/mmlu_questions.h"
#include "plimsoll/app/t5/t5_inputs.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/t5/load.h"
#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

constexpr int64_t kNoAnswer = -1;

struct MmluPrompts {
  std::vector<std::vector<int64_t>> ids;
  std::vector<int64_t> answers;
  std::vector<std::string> subjects;
  int64_t shortened = 0;
  std::vector<int64_t> letters;  // their tokens

  MmluPrompts(const MmluOptions& options, int64_t vocabulary) {
    const tokenize::T5Tokenizer tokenizer(options.model, vocabulary);
    for (const char* letter : kMmluLetters) letters.push_back(tokenizer.encode(letter).front());
    if (std::set<int64_t>(letters.begin(), letters.end()).size() < letters.size()) {
      fail("{}: expected a tokenizer with a token for each of A, B, C and D", options.model.native());
    }
    for (const MmluSubject& subject : read_mmlu(options.data)) {
      const size_t shots = std::min(static_cast<size_t>(options.shots), subject.examples.size());
      for (const MmluQuestion& question : subject.questions) {
        size_t given = shots;
        const auto encoded = [&] {
          return tokenizer.encode(mmlu_prompt(subject.name, std::span(subject.examples).first(given), question));
        };
        ids.push_back(encoded());
        while (given > 0 && ids.back().size() > static_cast<size_t>(options.max_tokens)) {
          --given;
          ids.back() = encoded();
        }
        shortened += given < static_cast<size_t>(options.shots) ? 1 : 0;
        answers.push_back(static_cast<int64_t>(question.answer));
        subjects.push_back(subject.name);
      }
    }
  }
};

std::vector<int64_t> answers_of(models::T5ForConditionalGenerationImpl& model, const MmluPrompts& prompts,
                                int64_t batch) {
  const at::Tensor letters = at::tensor(prompts.letters);
  std::vector<int64_t> answers;
  for (size_t begin = 0; begin < prompts.ids.size(); begin += static_cast<size_t>(batch)) {
    const size_t end = std::min(prompts.ids.size(), begin + static_cast<size_t>(batch));
    const T5Batch rows = t5_batch(prompts.ids, begin, end, model.config.pad_token_id);
    const at::Tensor start = at::full({rows.ids.size(0), 1}, model.config.decoder_start_token_id, at::kLong);
    const models::T5Output output =
        model.forward({.input_ids = rows.ids, .attention_mask = rows.mask, .decoder_input_ids = start});
    const at::Tensor logits = output.logits.select(1, 0).to(at::kFloat).index_select(1, letters);
    const at::Tensor likeliest = logits.argmax(1).masked_fill(logits.isfinite().all(1).logical_not(), kNoAnswer);
    answers.insert(answers.end(), likeliest.const_data_ptr<int64_t>(),
                   likeliest.const_data_ptr<int64_t>() + likeliest.numel());
  }
  return answers;
}

// Share of `answers` that are right, in all and by subject.
json marks(const std::vector<int64_t>& answers, const MmluPrompts& prompts) {
  std::map<std::string, std::pair<int64_t, int64_t>> of_subject;
  int64_t correct = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    auto& [right, all] = of_subject[prompts.subjects[i]];
    const int64_t is_right = answers[i] == prompts.answers[i] ? 1 : 0;
    right += is_right;
    correct += is_right;
    ++all;
  }
  json result = {{"accuracy", binomial_json(correct, static_cast<int64_t>(answers.size()))}};
  for (const auto& [name, counts] : of_subject) {
    result["subjects"][name] = binomial_json(counts.first, counts.second);
  }
  return result;
}

}  // namespace

json mmlu(const MmluOptions& options) {
  const at::NoGradGuard no_grad;
  const io::HuggingFaceDirectory directory(options.model);
  expect_tokenizer(options.model, "which has the ids of the questions");
  std::optional<MmluPrompts> prompts;
  std::vector<int64_t> first;
  json result = {{"shots", options.shots}, {"dtypes", json::object()}};
  for (const models::T5Dtype dtype : options.dtypes) {
    const std::string name(recipe::name_of(models::kT5Dtypes, dtype));
    const watch::AuditedRun run(name);
    models::T5ForConditionalGeneration model = models::load_t5(directory, dtype, options.warn);
    if (model->config.encoder_only) refuse("{}: expected a T5 with a decoder", options.model.native());
    model->numerics = options.numerics;
    if (!prompts) prompts.emplace(options, model->config.vocab_size);
    const std::vector<int64_t> answers = answers_of(*model, *prompts, options.batch);
    io::check_mapped_files();
    if (first.empty()) first = answers;
    json entry = marks(answers, *prompts);
    const auto total = static_cast<int64_t>(answers.size());
    int64_t same = 0;
    for (size_t i = 0; i < answers.size(); ++i) same += answers[i] == first[i] ? 1 : 0;
    entry["agreement"] = binomial_json(same, total);
    entry["no_answer"] = std::count(answers.begin(), answers.end(), kNoAnswer);
    result["dtypes"][name] = std::move(entry);
    result["questions"] = total;
    result["shortened"] = prompts->shortened;
  }
  return result;
}

}  // namespace plimsoll::app
