#include "plimsoll/app/parity.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "plimsoll/app/binomial.h"
#include "plimsoll/app/divergence.h"
#include "plimsoll/app/finite_json.h"
#include "plimsoll/app/relative_error.h"
#include "plimsoll/app/t5/t5_examples.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/t5/generation.h"
#include "plimsoll/models/t5/load.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

// Outputs of FP32 for one batch, and the texts that it writes.
struct ParityReference {
  models::T5Input input;
  at::Tensor encoder;            // [tokens, d_model], without padding
  at::Tensor log_probabilities;  // [decoder tokens, vocab_size], fp64; undefined without a decoder
  at::Tensor written;            // int64 [rows, length]
};

// Number of texts that are their example's target.
struct Marks {
  int64_t right = 0, of = 0;
};

// Compares what is written with the examples' targets, in their order.
class Marker {
 public:
  Marker(T5Texts& texts, const std::vector<T5Example>& examples) : texts_(texts), examples_(examples) {}

  void mark(const at::Tensor& written, const models::T5Config& config) {
    for (int64_t row = 0; row < written.size(0); ++row) {
      const T5Example& example = examples_[next_++];
      if (!example.has_target()) continue;
      marks_.right += texts_.is_target(example, written_ids(written.select(0, row), config)) ? 1 : 0;
      ++marks_.of;
    }
  }
  const Marks& marks() const { return marks_; }

 private:
  T5Texts& texts_;
  const std::vector<T5Example>& examples_;
  size_t next_ = 0;
  Marks marks_;
};

at::Tensor without_padding(const at::Tensor& values, const at::Tensor& mask) {
  return values.reshape({-1, values.size(-1)}).index({mask.reshape({-1})});
}

// Rows of `a` and `b` that are the same but for padding at the end.
int64_t equal_rows(const at::Tensor& a, const at::Tensor& b, int64_t pad) {
  const int64_t shared = std::min(a.size(1), b.size(1));
  const auto rest_is_padding = [&](const at::Tensor& ids) {
    return ids.narrow(1, shared, ids.size(1) - shared).eq(pad).all(1);
  };
  const at::Tensor same = a.narrow(1, 0, shared).eq(b.narrow(1, 0, shared)).all(1);
  return same.logical_and(rest_is_padding(a)).logical_and(rest_is_padding(b)).sum().item<int64_t>();
}

// One dtype of the model against FP32.
class ParityRun {
 public:
  ParityRun(models::T5ForConditionalGeneration model, int64_t max_new_tokens)
      : model_(std::move(model)), max_new_tokens_(max_new_tokens) {}

  models::T5Output run(const models::T5Input& input) {
    watch::Session session({.every_value = true});
    models::T5Output output = t5_output(*model_, input);
    for (const watch::Record& record : session.slots().records()) note(record);
    const std::vector<watch::Record> bad = session.slots().non_finite();
    if (first_non_finite_.empty() && !bad.empty()) first_non_finite_ = bad.front().name;
    finite_ = finite_ && output.encoder_output.isfinite().all().item<bool>();
    if (output.logits.defined()) finite_ = finite_ && output.logits.isfinite().all().item<bool>();
    return output;
  }

  ParityReference as_reference(const models::T5Input& input) {
    const models::T5Output output = run(input);
    ParityReference reference{.input = input,
                              .encoder = without_padding(output.encoder_output, input.attention_mask),
                              .log_probabilities = {},
                              .written = {}};
    if (!output.logits.defined()) return reference;
    reference.log_probabilities =
        at::log_softmax(without_padding(output.logits, input.decoder_attention_mask).to(at::kDouble), -1);
    reference.written = write(input);
    return reference;
  }

  void compare(const ParityReference& reference, Marker& marker) {
    const models::T5Input& input = reference.input;
    const models::T5Output output = run(input);
    encoder_.add(without_padding(output.encoder_output, input.attention_mask), reference.encoder);
    if (!output.logits.defined()) return;
    const at::Tensor& want = reference.log_probabilities;
    const at::Tensor got =
        at::log_softmax(without_padding(output.logits, input.decoder_attention_mask).to(at::kDouble), -1);
    for (const double divergence : divergences(want, got)) divergence_ += divergence;
    agreeing_ += agreeing_rows(want, got, 1);
    tokens_ += want.size(0);
    texts_ += input.input_ids.size(0);
    const at::Tensor written = write(input);
    matching_ += equal_rows(written, reference.written, model_->config.pad_token_id);
    marker.mark(written, model_->config);
  }

  json result(const Marks& marks) const {
    json result = {{"finite", finite_}, {"encoder_relative_l2", finite_or_null(encoder_.value())}};
    if (tokens_ > 0) {
      result["logits_kl"] = finite_or_null(divergence_ / static_cast<double>(tokens_));
      for (const auto& [name, same, all] :
           {std::tuple("top1_agreement", agreeing_, tokens_), std::tuple("string_match", matching_, texts_),
            std::tuple("accuracy", marks.right, marks.of)}) {
        if (all == 0) continue;
        const json binomial = binomial_json(same, all);
        result[name] = binomial.at("share");
        result[std::string(name) + "_interval"] = binomial.at("interval");
      }
    }
    if (!first_non_finite_.empty()) result["first_non_finite"] = first_non_finite_;
    for (const auto& [name, record] : records_) {
      result["headroom"][name] = record.non_finite > 0 ? json() : finite_or_null(record.headroom_bits);
      if (record.format != format::Format::kFp32) continue;
      const watch::Observation in_fp16{.format = format::Format::kFp16, .amax = record.amax};
      result["headroom_fp16"][name] = finite_or_null(watch::headroom_bits(in_fp16));
    }
    return result;
  }

 private:
  at::Tensor write(const models::T5Input& input) {
    return models::generate(*model_, input.input_ids, input.attention_mask, {.max_new_tokens = max_new_tokens_})
        .sequences;
  }

  void note(const watch::Record& record) {
    const auto [found, is_new] = records_.try_emplace(record.name, record);
    if (is_new) return;
    watch::Record& all = found->second;
    all.amax = std::max(all.amax, record.amax);
    all.headroom_bits = std::fmin(all.headroom_bits, record.headroom_bits);
    all.non_finite += record.non_finite;
  }

  models::T5ForConditionalGeneration model_;
  int64_t max_new_tokens_;
  std::map<std::string, watch::Record> records_;
  std::string first_non_finite_;  // the value in which Inf or NaN came up
  RelativeError encoder_;
  double divergence_ = 0;
  int64_t tokens_ = 0, agreeing_ = 0, texts_ = 0, matching_ = 0;
  bool finite_ = true;
};

}  // namespace

json parity(const ParityOptions& options) {
  const at::NoGradGuard no_grad;
  const io::HuggingFaceDirectory directory(options.model);
  std::vector<ParityReference> references;
  std::vector<T5Example> examples;
  std::optional<T5Texts> texts;
  json result = {{"dtypes", json::object()}};
  {
    const watch::AuditedRun audited("reference");
    models::T5ForConditionalGeneration exact = models::load_t5(directory, models::T5Dtype::kFp32, options.warn);
    texts.emplace(options.model, exact->config.vocab_size);
    examples = texts->read_examples(options.data);
    ParityRun run(exact, options.max_new_tokens);
    for (const models::T5Input& input :
         t5_inputs_of(examples, *exact,
                      {.batch = options.batch, .max_new_tokens = options.max_new_tokens, .check = options.check})) {
      options.check();
      references.push_back(run.as_reference(input));
    }
    result["inputs"] = examples.size();
  }
  int64_t tokens = 0;
  for (const ParityReference& reference : references) {
    if (reference.log_probabilities.defined()) tokens += reference.log_probabilities.size(0);
  }
  result["decoder_tokens"] = tokens;
  for (const models::T5Dtype dtype : options.dtypes) {
    const std::string name(recipe::name_of(models::kT5Dtypes, dtype));
    const watch::AuditedRun audited(name);
    models::T5ForConditionalGeneration model = models::load_t5(directory, dtype, options.warn);
    model->numerics = options.numerics;
    ParityRun run(std::move(model), options.max_new_tokens);
    Marker marker(*texts, examples);
    for (const ParityReference& reference : references) {
      options.check();
      run.compare(reference, marker);
    }
    io::check_mapped_files();
    result["dtypes"][name] = run.result(marker.marks());
  }
  return result;
}

}  // namespace plimsoll::app
