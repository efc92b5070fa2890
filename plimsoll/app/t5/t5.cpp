#include "plimsoll/app/t5/t5.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <optional>

#include "plimsoll/app/error.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/t5/t5_examples.h"
#include "plimsoll/app/t5/t5_inputs.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/io/output_lock.h"
#include "plimsoll/models/t5/load.h"

namespace plimsoll::app {
namespace {

// A model with the texts that it is asked to read.
struct T5Session {
  explicit T5Session(const T5Options& settings)
      : options(settings),
        model(models::load_t5(io::HuggingFaceDirectory(options.model), options.dtype, options.warn)),
        texts(options.model, model->config.vocab_size),
        inputs(texts.read(options.input)) {
    model->numerics = options.numerics;
  }

  // use(batch, first input) for each batch.
  void each_batch(const std::function<void(const T5Batch&, size_t)>& use) const {
    const auto step = static_cast<size_t>(options.batch);
    for (size_t begin = 0; begin < inputs.size(); begin += step) {
      use(t5_batch(inputs, begin, std::min(begin + step, inputs.size()), model->config.pad_token_id), begin);
    }
  }

  // Without the end that a text has.
  std::vector<std::vector<int64_t>> bad_words() {
    std::vector<std::vector<int64_t>> words = texts.read(options.bad_words);
    for (std::vector<int64_t>& word : words) {
      if (word.size() > 1 && word.back() == model->config.eos_token_id) word.pop_back();
    }
    return words;
  }

  void check_has_decoder() const {
    if (model->config.encoder_only)
      fail("{}: expected a model with a decoder, got an encoder alone", options.model.native());
  }

  const T5Options& options;
  models::T5ForConditionalGeneration model;
  T5Texts texts;
  std::vector<std::vector<int64_t>> inputs;
};

// The text of a growing list of ids, piece by piece: what stands before the last character, which may still change.
class TextStream {
 public:
  TextStream(T5Texts& texts, const models::T5Config& config, const std::function<void(const std::string&)>& write)
      : texts_(texts), config_(config), write_(write) {}

  void add(int64_t token) {
    if (token == config_.eos_token_id) return;
    ids_.push_back(token);
    const std::string text = texts_.decode(ids_);
    const size_t settled = text.find_last_of(' ');
    if (settled != text.npos && settled > done_) write(text.substr(0, settled));
  }
  void finish() { write(texts_.decode(ids_)); }

 private:
  void write(const std::string& text) {
    if (text.size() > done_) write_(text.substr(done_));
    done_ = std::max(done_, text.size());
  }

  T5Texts& texts_;
  const models::T5Config& config_;
  const std::function<void(const std::string&)>& write_;
  std::vector<int64_t> ids_;
  size_t done_ = 0;  // bytes written
};

}  // namespace

void t5_generate(const T5Options& options, const std::function<void(const T5Written&)>& sink,
                 const std::function<void(const std::string&)>& stream) {
  if (stream && (options.generation.beams > 1 || options.generation.sequences > 1)) {
    refuse("stream: expected one text for each input, got beams or several");
  }
  if (stream) expect_tokenizer(options.model, "which makes of ids the texts that are streamed");
  T5Options settings = options;
  if (stream) settings.batch = 1;
  T5Session session(settings);
  session.check_has_decoder();
  const models::T5Config& config = session.model->config;
  models::T5GenerationOptions generation = options.generation;
  if (!options.bad_words.empty()) generation.rules.bad_words_ids = session.bad_words();
  session.each_batch([&](const T5Batch& batch, size_t first) {
    models::T5TokenSink tokens;
    std::optional<TextStream> text;
    if (stream) {
      text.emplace(session.texts, config, stream);
      tokens = [&](const at::Tensor& step) { text->add(step.const_data_ptr<int64_t>()[0]); };
    }
    const models::T5Generated generated = models::generate(*session.model, batch.ids, batch.mask, generation, tokens);
    const at::Tensor& rows = generated.sequences;
    if (text) text->finish();
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const int64_t input = row / options.generation.sequences;
      T5Written written{.input = static_cast<int64_t>(first) + input,
                        .ids = written_ids(rows.select(0, row), config),
                        .text = {},
                        .score = {},
                        .finite = !generated.not_finite.contains(input)};
      if (generated.sequence_scores.defined()) written.score = generated.sequence_scores[row].item<double>();
      if (session.texts.can_decode()) written.text = session.texts.decode(written.ids);
      sink(written);
    }
  });
}

void t5_score(const T5Options& options, const std::function<void(const T5Score&)>& sink) {
  T5Session session(options);
  session.check_has_decoder();
  const std::vector<std::vector<int64_t>> targets = session.texts.read(options.target);
  if (targets.size() != session.inputs.size()) {
    fail("target: expected one for each of {} inputs, got {}", session.inputs.size(), targets.size());
  }
  const at::NoGradGuard no_grad;
  session.each_batch([&](const T5Batch& batch, size_t first) {
    const auto rows = static_cast<size_t>(batch.ids.size(0));
    const T5Batch target = t5_batch(targets, first, first + rows, session.model->config.pad_token_id);
    const models::T5Output output =
        session.model->forward({.input_ids = batch.ids,
                                .attention_mask = batch.mask,
                                .decoder_input_ids = session.model->shift_right(target.ids)});
    const at::Tensor each =
        at::log_softmax(output.logits, -1, at::kDouble).gather(2, target.ids.unsqueeze(2)).squeeze(2);
    const at::Tensor sums = each.masked_fill(target.mask.logical_not(), 0).sum(1);
    io::check_mapped_files();
    for (size_t row = 0; row < rows; ++row) {
      sink({.input = static_cast<int64_t>(first + row),
            .tokens = static_cast<int64_t>(targets[first + row].size()),
            .log_probability = sums.const_data_ptr<double>()[row]});
    }
  });
}

void t5_encode(const T5Options& options, const std::function<void(const T5Encoding&)>& sink) {
  std::optional<io::OutputLock> lock;
  if (!options.out.empty()) {
    lock.emplace(io::OutputLock::of_file(options.out));
    expect_free(options.out, "file");
  }
  T5Session session(options);
  const at::NoGradGuard no_grad;
  io::TensorMap outputs;
  session.each_batch([&](const T5Batch& batch, size_t first) {
    const at::Tensor hidden = session.model->encode(batch.ids, batch.mask).to(at::kFloat);
    io::check_mapped_files();
    for (int64_t row = 0; row < hidden.size(0); ++row) {
      const size_t input = first + static_cast<size_t>(row);
      const auto tokens = static_cast<int64_t>(session.inputs[input].size());
      const at::Tensor output = hidden.select(0, row).narrow(0, 0, tokens);
      sink({.input = static_cast<int64_t>(input),
            .tokens = tokens,
            .rms = output.square().mean().sqrt().item<double>(),
            .amax = output.abs().max().item<double>()});
      outputs.emplace(fmt::format("input.{}", input), output);
    }
  });
  if (!options.out.empty()) io::save_safetensors(options.out, outputs);
}

}  // namespace plimsoll::app
