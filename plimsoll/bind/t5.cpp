// T5 for plimsoll.t5: the model of models/t5 behind torch.classes.plimsoll.T5Model. Its parameters are tensors that Python
// shares, so that torch's optimizers train them.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <set>

#include "plimsoll/bind/named_option.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/t5/generation.h"
#include "plimsoll/models/t5/load.h"

namespace plimsoll::bind {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

at::Tensor or_none(const MaybeTensor& tensor) { return tensor.value_or(at::Tensor()); }

// Result that was computed from weights which may be a file's bytes.
template <class Result>
Result checked(Result result) {
  io::check_mapped_files();
  return result;
}

// Arguments by name; each must be there, and no other.
using Tensors = c10::Dict<std::string, at::Tensor>;
using Integers = c10::Dict<std::string, int64_t>;
using Numbers = c10::Dict<std::string, double>;
using Words = std::vector<std::vector<int64_t>>;

models::T5Input input_of(const Tensors& tensors, bool hidden_states) {
  const auto take = [&](const char* name) { return tensors.contains(name) ? tensors.at(name) : at::Tensor(); };
  return {.input_ids = take("input_ids"),
          .attention_mask = take("attention_mask"),
          .decoder_input_ids = take("decoder_input_ids"),
          .decoder_attention_mask = take("decoder_attention_mask"),
          .labels = take("labels"),
          .encoder_output = take("encoder_output"),
          .inputs_embeds = take("inputs_embeds"),
          .decoder_inputs_embeds = take("decoder_inputs_embeds"),
          .hidden_states = hidden_states};
}

void check_count(const char* where, size_t expected, size_t got) {
  TORCH_CHECK_VALUE(got == expected, where, ": expected ", expected, " options by name, got ", got);
}

models::T5GenerationOptions options_of(const Integers& integers, const Numbers& numbers, const Words& bad_words_ids,
                                       const std::string& early_stopping) {
  check_count("generate", 9 + 4, integers.size() + numbers.size());
  return {.max_new_tokens = integers.at("max_new_tokens"),
          .samples = integers.at("do_sample") != 0,
          .sampling = {.temperature = numbers.at("temperature"),
                       .top_k = integers.at("top_k"),
                       .top_p = numbers.at("top_p")},
          .seed = integers.at("seed"),
          .beams = integers.at("num_beams"),
          .length_penalty = numbers.at("length_penalty"),
          .early_stopping = named_option(models::kEarlyStoppings, "early_stopping", early_stopping),
          .sequences = integers.at("num_return_sequences"),
          .rules = {.repetition_penalty = numbers.at("repetition_penalty"),
                    .no_repeat_ngram_size = integers.at("no_repeat_ngram_size"),
                    .bad_words_ids = bad_words_ids,
                    .min_new_tokens = integers.at("min_new_tokens")},
          .keeps_scores = integers.at("output_scores") != 0};
}

void check_finite(const std::set<int64_t>& not_finite) {
  TORCH_CHECK(not_finite.empty(), "generate: expected finite logits, got Inf or NaN for input ", *not_finite.begin());
}

// The keys and values of the decoder's tokens so far, and what the encoder has said.
struct T5Past : torch::CustomClassHolder {
  T5Past(models::T5ForConditionalGenerationImpl& model, models::T5Encoded of)
      : encoded(std::move(of)), cache(model.start(encoded, 1, kRoom)) {}

  void reserve(int64_t tokens) {
    if (tokens > cache.capacity()) cache.reserve(std::max(tokens, 2 * cache.capacity()));
  }

  static constexpr int64_t kRoom = 32;  // tokens at first
  models::T5Encoded encoded;
  models::T5Cache cache;
};

// Greedy decoding or sampling, step by step.
struct T5Steps : torch::CustomClassHolder {
  T5Steps(models::T5ForConditionalGeneration owner, const models::T5Encoded& encoded,
          const models::T5GenerationOptions& options)
      : model(std::move(owner)), decoding(*model, encoded, options) {}

  models::T5ForConditionalGeneration model;
  models::T5Decoding decoding;
};

struct T5Model : torch::CustomClassHolder {
  T5Model(const std::string& directory, const std::string& dtype, bool encoder_alone)
      : model(models::load_t5(
            io::HuggingFaceDirectory(directory), named_option(models::kT5Dtypes, "dtype", dtype),
            [this](const std::string& text) { warning = text; },
            encoder_alone ? models::T5Parts::kEncoder : models::T5Parts::kAll)) {}
  explicit T5Model(models::T5ForConditionalGeneration of) : model(std::move(of)) {}

  c10::Dict<std::string, at::Tensor> parameters() const {
    c10::Dict<std::string, at::Tensor> result;
    for (const auto& item : model->named_parameters()) result.insert(item.key(), item.value());
    return result;
  }

  c10::intrusive_ptr<T5Model> clone() const {
    const auto copy = std::dynamic_pointer_cast<models::T5ForConditionalGenerationImpl>(checked(model->clone()));
    return c10::make_intrusive<T5Model>(models::T5ForConditionalGeneration(copy));
  }

  void train(bool mode) { model->train(mode); }

  void set_fixes(const Numbers& switches) {
    check_count("t5_fixes", 6, switches.size());
    const models::T5Fixes fixes = {.downproject_scale = switches.at("downproject_scale"),
                                   .residual_fp32 = switches.at("residual_fp32") != 0,
                                   .mask_scale = switches.at("mask_scale"),
                                   .gelu_guard = switches.at("gelu_guard"),
                                   .no_dynamic_clamp = switches.at("no_dynamic_clamp") != 0,
                                   .training_clamp = switches.at("training_clamp") != 0};
    models::check(fixes);
    model->numerics = fixes;
  }
  void clear_fixes() { model->numerics.reset(); }

  // (the output, hidden states)
  std::tuple<at::Tensor, std::vector<at::Tensor>> run_encoder(const Tensors& tensors, bool hidden_states) {
    const models::T5Output output = checked(model->run_encoder(input_of(tensors, hidden_states)));
    return {output.encoder_output, output.encoder_hidden_states};
  }

  // (loss, logits, the encoder's output, hidden states of the encoder, of the decoder)
  std::tuple<MaybeTensor, at::Tensor, at::Tensor, std::vector<at::Tensor>, std::vector<at::Tensor>> forward(
      const Tensors& tensors, bool hidden_states, const std::optional<c10::intrusive_ptr<T5Past>>& past) {
    models::T5Input input = input_of(tensors, hidden_states);
    if (past) {
      const at::Tensor& tokens =
          input.decoder_inputs_embeds.defined() ? input.decoder_inputs_embeds : input.decoder_input_ids;
      if (tokens.defined() && tokens.dim() > 1) (*past)->reserve((*past)->cache.length() + tokens.size(1));
      input.cache = &(*past)->cache;
      input.encoder_output = (*past)->encoded.hidden;
    }
    const models::T5Output output = checked(model->forward(input));
    const MaybeTensor loss = output.loss.defined() ? MaybeTensor(output.loss) : std::nullopt;
    return {loss, output.logits, output.encoder_output, output.encoder_hidden_states, output.decoder_hidden_states};
  }

  c10::intrusive_ptr<T5Past> start(const at::Tensor& encoder_output, const MaybeTensor& attention_mask) {
    return checked(c10::make_intrusive<T5Past>(*model, models::T5Encoded{encoder_output, or_none(attention_mask)}));
  }

  // (sequences, their scores, beam indices, scores)
  std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> beam_search(
      const at::Tensor& input_ids, const MaybeTensor& attention_mask, const Integers& integers, const Numbers& numbers,
      const Words& bad_words_ids, const std::string& early_stopping) {
    const models::T5Generated generated = checked(models::generate(
        *model, input_ids, or_none(attention_mask), options_of(integers, numbers, bad_words_ids, early_stopping)));
    check_finite(generated.not_finite);
    return {generated.sequences, generated.sequence_scores, generated.beam_indices, generated.scores};
  }

  c10::intrusive_ptr<T5Steps> decode(const at::Tensor& input_ids, const MaybeTensor& attention_mask,
                                     const Integers& integers, const Numbers& numbers, const Words& bad_words_ids,
                                     const std::string& early_stopping) {
    const at::NoGradGuard no_grad;
    const models::T5GenerationOptions options = options_of(integers, numbers, bad_words_ids, early_stopping);
    models::check(options, model->config);
    const at::Tensor mask = or_none(attention_mask);
    return c10::make_intrusive<T5Steps>(model, models::T5Encoded{checked(model->encode(input_ids, mask)), mask},
                                        options);
  }

  std::string warning;  // of loading, or empty
  models::T5ForConditionalGeneration model;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  io::tell_lost_bytes_on_stderr();  // torch's own operators read parameters, too
  using Self = c10::intrusive_ptr<T5Steps>;
  library.class_<T5Steps>("T5Steps")
      .def("done", [](const Self& self) { return self->decoding.done(); })
      .def("step",
           [](const Self& self) {
             const at::Tensor tokens = checked(self->decoding.step());
             check_finite(self->decoding.not_finite());
             return tokens;
           })
      .def("sequences", [](const Self& self) { return self->decoding.generated().sequences; })
      .def("scores", [](const Self& self) { return self->decoding.generated().scores; });
  library.class_<T5Past>("T5Past").def("get_seq_length",
                                       [](const c10::intrusive_ptr<T5Past>& self) { return self->cache.length(); });
  library.class_<T5Model>("T5Model")
      .def(torch::init<std::string, std::string, bool>())
      .def("warning", [](const c10::intrusive_ptr<T5Model>& self) { return self->warning; })
      .def("parameters", &T5Model::parameters)
      .def("clone", &T5Model::clone)
      .def("train", &T5Model::train)
      .def("set_fixes", &T5Model::set_fixes)
      .def("clear_fixes", &T5Model::clear_fixes)
      .def("run_encoder", &T5Model::run_encoder)
      .def("forward", &T5Model::forward)
      .def("start", &T5Model::start)
      .def("beam_search", &T5Model::beam_search)
      .def("decode", &T5Model::decode);
}

}  // namespace plimsoll::bind
