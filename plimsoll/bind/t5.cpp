// T5 for plimsoll.t5: the model of models/t5 behind torch.classes.plimsoll.T5Model. Its parameters are tensors that Python
// shares, so that torch's optimizers train them.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <set>
#include <utility>

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

// Options of generate(), read once.
struct T5Generation : torch::CustomClassHolder {
  explicit T5Generation(models::T5GenerationOptions of) : options(std::move(of)) {}
  models::T5GenerationOptions options;
};
using GenerationPointer = c10::intrusive_ptr<T5Generation>;

GenerationPointer t5_generation(int64_t max_new_tokens, int64_t min_new_tokens, bool do_sample, double temperature,
                                int64_t top_k, double top_p, int64_t seed, int64_t num_beams, double length_penalty,
                                std::string_view early_stopping, int64_t num_return_sequences,
                                double repetition_penalty, int64_t no_repeat_ngram_size,
                                const c10::List<std::vector<int64_t>>& bad_words_ids, bool output_scores) {
  return c10::make_intrusive<T5Generation>(models::T5GenerationOptions{
      .max_new_tokens = max_new_tokens,
      .samples = do_sample,
      .sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p},
      .seed = seed,
      .beams = num_beams,
      .length_penalty = length_penalty,
      .early_stopping = named_option(models::kEarlyStoppings, "early_stopping", early_stopping),
      .sequences = num_return_sequences,
      .rules = {.repetition_penalty = repetition_penalty,
                .no_repeat_ngram_size = no_repeat_ngram_size,
                .bad_words_ids = bad_words_ids.vec(),
                .min_new_tokens = min_new_tokens},
      .keeps_scores = output_scores});
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

  void clear_fixes() { model->numerics.reset(); }

  c10::intrusive_ptr<T5Past> start(const at::Tensor& encoder_output, const MaybeTensor& attention_mask) {
    return checked(c10::make_intrusive<T5Past>(*model, models::T5Encoded{encoder_output, or_none(attention_mask)}));
  }

  // (sequences, their scores, beam indices, scores)
  std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> beam_search(
      const at::Tensor& input_ids, const MaybeTensor& attention_mask, const GenerationPointer& generation) {
    const models::T5Generated generated =
        checked(models::generate(*model, input_ids, or_none(attention_mask), generation->options));
    check_finite(generated.not_finite);
    return {generated.sequences, generated.sequence_scores, generated.beam_indices, generated.scores};
  }

  c10::intrusive_ptr<T5Steps> decode(const at::Tensor& input_ids, const MaybeTensor& attention_mask,
                                     const GenerationPointer& generation) {
    const at::NoGradGuard no_grad;
    models::check(generation->options, model->config);
    const at::Tensor mask = or_none(attention_mask);
    return c10::make_intrusive<T5Steps>(model, models::T5Encoded{checked(model->encode(input_ids, mask)), mask},
                                        generation->options);
  }

  std::string warning;  // of loading, or empty
  models::T5ForConditionalGeneration model;
};

using ModelPointer = c10::intrusive_ptr<T5Model>;
using PastPointer = c10::intrusive_ptr<T5Past>;

void t5_set_fixes(const ModelPointer& model, double downproject_scale, bool residual_fp32, double mask_scale,
                  double gelu_guard, bool no_dynamic_clamp, bool training_clamp) {
  const models::T5Fixes fixes = {.downproject_scale = downproject_scale,
                                 .residual_fp32 = residual_fp32,
                                 .mask_scale = mask_scale,
                                 .gelu_guard = gelu_guard,
                                 .no_dynamic_clamp = no_dynamic_clamp,
                                 .training_clamp = training_clamp};
  models::check(fixes);
  model->model->numerics = fixes;
}

std::tuple<at::Tensor, std::vector<at::Tensor>> t5_run_encoder(const ModelPointer& model, const MaybeTensor& input_ids,
                                                               const MaybeTensor& attention_mask,
                                                               const MaybeTensor& inputs_embeds,
                                                               bool output_hidden_states) {
  const models::T5Output output = checked(model->model->run_encoder({.input_ids = or_none(input_ids),
                                                                     .attention_mask = or_none(attention_mask),
                                                                     .inputs_embeds = or_none(inputs_embeds),
                                                                     .hidden_states = output_hidden_states}));
  return {output.encoder_output, output.encoder_hidden_states};
}

std::tuple<MaybeTensor, at::Tensor, at::Tensor, std::vector<at::Tensor>, std::vector<at::Tensor>> t5_forward(
    const ModelPointer& model, const MaybeTensor& input_ids, const MaybeTensor& attention_mask,
    const MaybeTensor& decoder_input_ids, const MaybeTensor& decoder_attention_mask, const MaybeTensor& encoder_output,
    const MaybeTensor& inputs_embeds, const MaybeTensor& decoder_inputs_embeds, const MaybeTensor& labels,
    bool output_hidden_states, const std::optional<PastPointer>& past) {
  models::T5Input input{.input_ids = or_none(input_ids),
                        .attention_mask = or_none(attention_mask),
                        .decoder_input_ids = or_none(decoder_input_ids),
                        .decoder_attention_mask = or_none(decoder_attention_mask),
                        .labels = or_none(labels),
                        .encoder_output = or_none(encoder_output),
                        .inputs_embeds = or_none(inputs_embeds),
                        .decoder_inputs_embeds = or_none(decoder_inputs_embeds),
                        .hidden_states = output_hidden_states};
  if (past) {
    const at::Tensor& tokens =
        input.decoder_inputs_embeds.defined() ? input.decoder_inputs_embeds : input.decoder_input_ids;
    if (tokens.defined() && tokens.dim() > 1) (*past)->reserve((*past)->cache.length() + tokens.size(1));
    input.cache = &(*past)->cache;
    input.encoder_output = (*past)->encoded.hidden;
  }
  const models::T5Output output = checked(model->model->forward(input));
  const MaybeTensor loss = output.loss.defined() ? MaybeTensor(output.loss) : std::nullopt;
  return {loss, output.logits, output.encoder_output, output.encoder_hidden_states, output.decoder_hidden_states};
}

#define PLIMSOLL_T5_MODEL "__torch__.torch.classes.plimsoll.T5Model model"

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
  library.class_<T5Past>("T5Past").def("get_seq_length", [](const PastPointer& self) { return self->cache.length(); });
  library.class_<T5Generation>("T5Generation");
  library.class_<T5Model>("T5Model")
      .def(torch::init<std::string, std::string, bool>())
      .def("warning", [](const ModelPointer& self) { return self->warning; })
      .def("parameters", &T5Model::parameters)
      .def("clone", &T5Model::clone)
      .def("train", &T5Model::train)
      .def("clear_fixes", &T5Model::clear_fixes)
      .def("start", &T5Model::start)
      .def("beam_search", &T5Model::beam_search)
      .def("decode", &T5Model::decode);
  library.def(
      "t5_generation(*, int max_new_tokens, int min_new_tokens, bool do_sample, float temperature, int top_k, "
      "float top_p, int seed, int num_beams, float length_penalty, str early_stopping, int num_return_sequences, "
      "float repetition_penalty, int no_repeat_ngram_size, int[][] bad_words_ids, bool output_scores) -> "
      "__torch__.torch.classes.plimsoll.T5Generation",
      &t5_generation);
  library.def("t5_set_fixes(" PLIMSOLL_T5_MODEL
              ", *, float downproject_scale, bool residual_fp32, float mask_scale, float gelu_guard, "
              "bool no_dynamic_clamp, bool training_clamp) -> ()",
              &t5_set_fixes);
  library.def("t5_run_encoder(" PLIMSOLL_T5_MODEL
              ", *, Tensor? input_ids=None, Tensor? attention_mask=None, Tensor? inputs_embeds=None, "
              "bool output_hidden_states=False) -> (Tensor output, Tensor[] hidden_states)",
              &t5_run_encoder);
  library.def("t5_forward(" PLIMSOLL_T5_MODEL
              ", *, Tensor? input_ids=None, Tensor? attention_mask=None, Tensor? decoder_input_ids=None, "
              "Tensor? decoder_attention_mask=None, Tensor? encoder_output=None, Tensor? inputs_embeds=None, "
              "Tensor? decoder_inputs_embeds=None, Tensor? labels=None, bool output_hidden_states=False, "
              "__torch__.torch.classes.plimsoll.T5Past? past=None) -> (Tensor? loss, Tensor logits, "
              "Tensor encoder_output, Tensor[] encoder_hidden_states, Tensor[] decoder_hidden_states)",
              &t5_forward);
}

}  // namespace plimsoll::bind
