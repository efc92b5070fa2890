// T5 for plimsoll.t5: the model of models/t5 behind torch.classes.plimsoll.T5Model. Its parameters are tensors that Python
// shares, so that torch's optimizers train them.
#include <torch/custom_class.h>
#include <torch/library.h>

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

models::EarlyStopping parse_early_stopping(const std::string& name) {
  if (name == "heuristic") return models::EarlyStopping::kHeuristic;
  if (name == "first") return models::EarlyStopping::kFirstFull;
  TORCH_CHECK_VALUE(name == "never", "early_stopping: expected heuristic, first or never, got '", name, "'");
  return models::EarlyStopping::kNever;
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
      : model(models::load_t5(io::HuggingFaceDirectory(directory), recipe::value_of(models::kT5Dtypes, "dtype", dtype),
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

  void set_fixes(double downproject_scale, bool residual_fp32, double mask_scale, double gelu_guard,
                 bool no_dynamic_clamp) {
    const models::T5Fixes fixes = {.downproject_scale = downproject_scale,
                                   .residual_fp32 = residual_fp32,
                                   .mask_scale = mask_scale,
                                   .gelu_guard = gelu_guard,
                                   .no_dynamic_clamp = no_dynamic_clamp};
    models::check(fixes);
    model->numerics = fixes;
  }
  void clear_fixes() { model->numerics.reset(); }

  at::Tensor encode(const at::Tensor& input_ids, const MaybeTensor& attention_mask) {
    return checked(model->encode(input_ids, or_none(attention_mask)));
  }

  std::tuple<MaybeTensor, at::Tensor, at::Tensor> forward(
      const MaybeTensor& input_ids, const MaybeTensor& attention_mask, const MaybeTensor& decoder_input_ids,
      const MaybeTensor& decoder_attention_mask, const MaybeTensor& labels, const MaybeTensor& encoder_output) {
    const models::T5Output output = checked(model->forward({.input_ids = or_none(input_ids),
                                                            .attention_mask = or_none(attention_mask),
                                                            .decoder_input_ids = or_none(decoder_input_ids),
                                                            .decoder_attention_mask = or_none(decoder_attention_mask),
                                                            .labels = or_none(labels),
                                                            .encoder_output = or_none(encoder_output)}));
    const MaybeTensor loss = output.loss.defined() ? MaybeTensor(output.loss) : std::nullopt;
    return {loss, output.logits, output.encoder_output};
  }

  at::Tensor beam_search(const at::Tensor& input_ids, const MaybeTensor& attention_mask, int64_t max_new_tokens,
                         int64_t beams, double length_penalty, const std::string& early_stopping, int64_t sequences) {
    return checked(models::generate(*model, input_ids, or_none(attention_mask),
                                    {.max_new_tokens = max_new_tokens,
                                     .beams = beams,
                                     .length_penalty = length_penalty,
                                     .early_stopping = parse_early_stopping(early_stopping),
                                     .sequences = sequences}));
  }

  c10::intrusive_ptr<T5Steps> decode(const at::Tensor& input_ids, const MaybeTensor& attention_mask,
                                     int64_t max_new_tokens, bool samples, double temperature, int64_t top_k,
                                     double top_p, int64_t seed, int64_t sequences) {
    const at::NoGradGuard no_grad;
    const models::T5GenerationOptions options = {
        .max_new_tokens = max_new_tokens,
        .samples = samples,
        .sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p},
        .seed = seed,
        .sequences = sequences};
    models::check(options);
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
      .def("step", [](const Self& self) { return checked(self->decoding.step()); })
      .def("sequences", [](const Self& self) { return self->decoding.sequences(); });
  library.class_<T5Model>("T5Model")
      .def(torch::init<std::string, std::string>())
      .def("warning", [](const c10::intrusive_ptr<T5Model>& self) { return self->warning; })
      .def("parameters", &T5Model::parameters)
      .def("clone", &T5Model::clone)
      .def("train", &T5Model::train)
      .def("set_fixes", &T5Model::set_fixes)
      .def("clear_fixes", &T5Model::clear_fixes)
      .def("encode", &T5Model::encode)
      .def("forward", &T5Model::forward)
      .def("beam_search", &T5Model::beam_search)
      .def("decode", &T5Model::decode);
}

}  // namespace plimsoll::bind
