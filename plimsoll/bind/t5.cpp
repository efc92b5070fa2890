// T5 for plimsoll.t5: the model of models/t5 behind torch.classes.plimsoll.T5Model. Its parameters are tensors that Python
// shares, so that torch's optimizers train them.
#include <torch/custom_class.h>
#include <torch/library.h>

#include "plimsoll/bind/named_option.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/t5/generation.h"
#include "plimsoll/models/t5/load.h"

namespace plimsoll::bind {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

at::Tensor or_none(const MaybeTensor& tensor) { return tensor.value_or(at::Tensor()); }

// What was computed from weights that may be a file's bytes.
template <class Result>
Result checked(Result result) {
  io::check_mapped_files();
  return result;
}

// Greedy decoding or sampling, step by step.
struct T5Steps : torch::CustomClassHolder {
  T5Steps(models::T5ForConditionalGeneration owner, const models::T5Encoded& encoded,
          const models::T5GenerationOptions& options)
      : model(std::move(owner)), decoding(*model, encoded, options) {}

  models::T5ForConditionalGeneration model;
  models::T5Decoding decoding;
};

struct T5Model : torch::CustomClassHolder {
  T5Model(const std::string& directory, const std::string& dtype)
      : model(models::load_t5(io::HuggingFaceDirectory(directory), named_option(models::kT5Dtypes, "dtype", dtype),
                              [this](const std::string& text) { warning = text; })) {}
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

  at::Tensor encode(const at::Tensor& input_ids, const MaybeTensor& attention_mask) {
    return checked(model->encode(input_ids, or_none(attention_mask)));
  }

  std::string warning;  // of loading, or empty
  models::T5ForConditionalGeneration model;
};

using ModelPointer = c10::intrusive_ptr<T5Model>;
using StepsPointer = c10::intrusive_ptr<T5Steps>;

void set_fixes(const ModelPointer& self, double downproject_scale, bool residual_fp32, double mask_scale,
               double gelu_guard, bool no_dynamic_clamp) {
  const models::T5Fixes fixes = {.downproject_scale = downproject_scale,
                                 .residual_fp32 = residual_fp32,
                                 .mask_scale = mask_scale,
                                 .gelu_guard = gelu_guard,
                                 .no_dynamic_clamp = no_dynamic_clamp};
  models::check(fixes);
  self->model->numerics = fixes;
}

std::tuple<MaybeTensor, at::Tensor, at::Tensor> forward(const ModelPointer& self, const MaybeTensor& input_ids,
                                                        const MaybeTensor& attention_mask,
                                                        const MaybeTensor& decoder_input_ids,
                                                        const MaybeTensor& decoder_attention_mask,
                                                        const MaybeTensor& labels, const MaybeTensor& encoder_output) {
  const models::T5Output output =
      checked(self->model->forward({.input_ids = or_none(input_ids),
                                    .attention_mask = or_none(attention_mask),
                                    .decoder_input_ids = or_none(decoder_input_ids),
                                    .decoder_attention_mask = or_none(decoder_attention_mask),
                                    .labels = or_none(labels),
                                    .encoder_output = or_none(encoder_output)}));
  const MaybeTensor loss = output.loss.defined() ? MaybeTensor(output.loss) : std::nullopt;
  return {loss, output.logits, output.encoder_output};
}

at::Tensor beam_search(const ModelPointer& self, const at::Tensor& input_ids, const MaybeTensor& attention_mask,
                       int64_t max_new_tokens, int64_t beams, double length_penalty, std::string_view early_stopping,
                       int64_t sequences) {
  return checked(
      models::generate(*self->model, input_ids, or_none(attention_mask),
                       {.max_new_tokens = max_new_tokens,
                        .beams = beams,
                        .length_penalty = length_penalty,
                        .early_stopping = named_option(models::kEarlyStoppings, "early_stopping", early_stopping),
                        .sequences = sequences}));
}

StepsPointer decode(const ModelPointer& self, const at::Tensor& input_ids, const MaybeTensor& attention_mask,
                    int64_t max_new_tokens, bool samples, double temperature, int64_t top_k, double top_p, int64_t seed,
                    int64_t sequences) {
  const at::NoGradGuard no_grad;
  const models::T5GenerationOptions options = {.max_new_tokens = max_new_tokens,
                                               .samples = samples,
                                               .sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p},
                                               .seed = seed,
                                               .sequences = sequences};
  models::check(options);
  const at::Tensor mask = or_none(attention_mask);
  return c10::make_intrusive<T5Steps>(self->model,
                                      models::T5Encoded{checked(self->model->encode(input_ids, mask)), mask}, options);
}

#define PLIMSOLL_T5_MODEL "__torch__.torch.classes.plimsoll.T5Model model"

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  io::tell_lost_bytes_on_stderr();  // torch's own operators read parameters, too
  library.class_<T5Steps>("T5Steps")
      .def("done", [](const StepsPointer& self) { return self->decoding.done(); })
      .def("step", [](const StepsPointer& self) { return checked(self->decoding.step()); })
      .def("sequences", [](const StepsPointer& self) { return self->decoding.sequences(); });
  library.class_<T5Model>("T5Model")
      .def(torch::init<std::string, std::string>())
      .def("warning", [](const ModelPointer& self) { return self->warning; })
      .def("parameters", &T5Model::parameters)
      .def("clone", &T5Model::clone)
      .def("train", &T5Model::train)
      .def("clear_fixes", &T5Model::clear_fixes)
      .def("encode", &T5Model::encode);
  library.def("t5_set_fixes(" PLIMSOLL_T5_MODEL
              ", *, float downproject_scale, bool residual_fp32, float mask_scale, float gelu_guard, "
              "bool no_dynamic_clamp) -> ()",
              &set_fixes);
  library.def("t5_forward(" PLIMSOLL_T5_MODEL
              ", *, Tensor? input_ids, Tensor? attention_mask, Tensor? decoder_input_ids, "
              "Tensor? decoder_attention_mask, Tensor? labels, Tensor? encoder_output) -> "
              "(Tensor? loss, Tensor logits, Tensor encoder_output)",
              &forward);
  library.def("t5_beam_search(" PLIMSOLL_T5_MODEL
              ", Tensor input_ids, Tensor? attention_mask, *, int max_new_tokens, int beams, float length_penalty, "
              "str early_stopping, int sequences) -> Tensor",
              &beam_search);
  library.def("t5_decode(" PLIMSOLL_T5_MODEL
              ", Tensor input_ids, Tensor? attention_mask, *, int max_new_tokens, bool samples, float temperature, "
              "int top_k, float top_p, int seed, int sequences) -> __torch__.torch.classes.plimsoll.T5Steps",
              &decode);
}

}  // namespace plimsoll::bind
