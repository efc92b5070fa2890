// Decoder-only models for plimsoll.models: those of models/load.h behind torch.classes.plimsoll.DecoderModel. Its
// parameters are tensors that Python shares, so that torch's optimizers train them.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <nlohmann/json.hpp>

#include "plimsoll/bind/named_option.h"
#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/load.h"
#include "plimsoll/models/decoder/save.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/decoding.h"
#include "plimsoll/models/generation_defaults.h"
#include "plimsoll/models/lora/config.h"
#include "plimsoll/models/lora/places.h"
#include "plimsoll/runtime/philox.h"

namespace plimsoll::bind {
namespace {

using TensorsByName = c10::Dict<std::string, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

// Keys and values of the tokens so far.
struct DecoderPast : torch::CustomClassHolder {
  explicit DecoderPast(models::TokenCache of) : cache(std::move(of)) {}

  models::TokenCache cache;
};

struct DecoderModel : torch::CustomClassHolder {
  DecoderModel(const std::string& directory, const std::string& dtype)
      : model(models::load_decoder(
            io::HuggingFaceDirectory(directory),
            {.dtype = named_option(models::kWeightDtypes, "dtype", dtype),
             .coded = models::CodedWeights::kHeld,
             .warn = [this](const std::string& text) { warning += (warning.empty() ? "" : "; ") + text; }})) {}
  explicit DecoderModel(models::Decoder of) : model(std::move(of)) {}

  // Values that generate() takes where none are given, under the names of generation_config.json, of which
  // `directory` may have one. JSON: ids are those of the vocabulary, eos_token_id a list, pad_token_id null where there
  // is none.
  std::string generation_defaults(const std::string& directory) const {
    const models::GenerationDefaults defaults = models::read_generation_defaults(directory);
    const models::DecoderConfig& config = model->config;
    return nlohmann::json{
        {"max_new_tokens", defaults.max_new_tokens},
        {"do_sample", defaults.sampling.temperature > 0},
        {"temperature", defaults.draws.temperature},
        {"top_k", defaults.draws.top_k},
        {"top_p", defaults.draws.top_p},
        {"min_p", defaults.draws.min_p},
        {"repetition_penalty", defaults.rules.repetition_penalty},
        {"no_repeat_ngram_size", defaults.rules.no_repeat_ngram_size},
        {"eos_token_id", config.eos_token_ids},
        {"pad_token_id", config.pad_token_id ? nlohmann::json(*config.pad_token_id) : nlohmann::json()}}
        .dump();
  }

  // Says which weights became Inf, or nothing.
  std::string merge_lora() {
    std::string overflowed;
    models::merge_lora(*model, [&](const std::string& text) { overflowed = text; });
    return overflowed;
  }

  std::string config() const { return models::decoder_config_json(model->config).dump(); }

  TensorsByName parameters() const {
    TensorsByName result;
    const auto all = model->named_parameters();
    for (const models::DecoderTensor& tensor : models::decoder_tensors(model->config)) {
      result.insert(tensor.parameter, all[tensor.parameter]);
    }
    return result;
  }

  // config: the text of an adapter_config.json.
  void add_lora(const std::string& config) {
    const std::string name = "LoraConfig";
    models::add_lora(*model, models::read_adapter_config(io::parse_json(config, name), name).options);
  }

  // The text of the adapter_config.json.
  std::string load_adapter(const std::string& directory) {
    return models::adapter_config_json({.options = models::load_adapter(*model, directory)}).dump();
  }

  // By the names of Hugging Face's files: NAME.lora_A.weight, NAME.lora_B.weight. GPT-NeoX's B has the rows of queries, of
  // keys, of values.
  TensorsByName adapters() const {
    TensorsByName result;
    for (const auto& [place, lora] : models::adapted_places(*model)) {
      for (size_t i = 0; i < place.modules.size(); ++i) {
        result.insert(place.modules[i].name + ".lora_A.weight", lora->a[i]);
        result.insert(place.modules[i].name + ".lora_B.weight", lora->b[i]);
      }
    }
    return result;
  }

  // Tensors by the names of parameters() (weights, gradients) -> by the names of Hugging Face's files.
  TensorsByName as_stored(const TensorsByName& tensors) const {
    TensorsByName result;
    for (const models::DecoderTensor& parameter : models::decoder_tensors(model->config)) {
      if (!tensors.contains(parameter.parameter)) continue;
      const auto parts = models::stored_parts(parameter, model->config, tensors.at(parameter.parameter));
      for (const auto& [name, part] : parts) result.insert(name, part);
    }
    return result;
  }

  c10::intrusive_ptr<DecoderModel> clone() const {
    const auto copy = std::dynamic_pointer_cast<models::DecoderImpl>(model->clone());
    io::check_mapped_files();
    return c10::make_intrusive<DecoderModel>(models::Decoder(copy));
  }

  at::Tensor forward(const at::Tensor& input_ids, const OptionalTensor& attention_mask) {
    const at::Tensor logits = model->forward(input_ids, attention_mask.value_or(at::Tensor()));
    io::check_mapped_files();
    return logits;
  }

  // targets: of each place the token that follows, or -100.
  at::Tensor loss(const at::Tensor& input_ids, const at::Tensor& targets, const OptionalTensor& attention_mask) {
    const at::Tensor loss =
        model->loss(input_ids, targets, attention_mask.value_or(at::Tensor()), /*is_first_microbatch=*/std::nullopt);
    io::check_mapped_files();
    return loss;
  }

  at::Tensor extend(const at::Tensor& input_ids, const OptionalTensor& attention_mask,
                    const c10::intrusive_ptr<DecoderPast>& past) {
    const at::Tensor logits = model->extend(
        input_ids, past->cache, {.attention_mask = attention_mask.value_or(at::Tensor()), .all_logits = true});
    io::check_mapped_files();
    return logits;
  }

  void save(const std::string& directory, const std::string& source) const {
    models::save_decoder(*model, directory, {.source = source});
  }

  std::string warning;  // of loading, or empty
  models::Decoder model;
};

// The tokens of each row, in their order, without padding.
std::vector<std::vector<int64_t>> texts_of(const at::Tensor& input_ids, const OptionalTensor& attention_mask) {
  TORCH_CHECK(input_ids.dim() == 2 && input_ids.scalar_type() == at::kLong && input_ids.size(1) > 0,
              "generate: expected input_ids int64 [batch, seq], seq > 0, got ", input_ids.scalar_type(), " ",
              input_ids.sizes());
  TORCH_CHECK(!attention_mask || attention_mask->sizes() == input_ids.sizes(), "generate: expected an attention_mask ",
              input_ids.sizes(), ", got ", attention_mask->sizes());
  std::vector<std::vector<int64_t>> texts;
  for (int64_t row = 0; row < input_ids.size(0); ++row) {
    const at::Tensor ids = input_ids[row];
    const at::Tensor text = attention_mask ? ids.masked_select((*attention_mask)[row] != 0) : ids.contiguous();
    texts.emplace_back(text.const_data_ptr<int64_t>(), text.const_data_ptr<int64_t>() + text.numel());
  }
  return texts;
}

// Texts under way, and the model that writes them.
struct DecoderSteps : torch::CustomClassHolder {
  DecoderSteps(models::Decoder owner, models::DecodingOptions options, int64_t pad)
      : model(std::move(owner)), decoding(*model, std::move(options)), pad_token_id(pad) {}

  // int64 [batch]: the tokens written, pad where a text has ended.
  at::Tensor step() {
    at::Tensor tokens = at::full({columns.front().size(0)}, pad_token_id, at::kLong);
    decoding.step([&](const models::NewToken& token) {
      tokens.mutable_data_ptr<int64_t>()[token.text] = token.id;
      return false;
    });
    io::check_mapped_files();
    for (int64_t i = 0; i < tokens.size(0); ++i) {
      TORCH_CHECK(decoding.end(i) != models::TextEnd::kNotFinite,
                  "generate: expected finite logits, got Inf or NaN for input ", i);
    }
    columns.push_back(tokens.unsqueeze(1));
    return tokens;
  }

  models::Decoder model;
  models::Decoding decoding;
  int64_t pad_token_id;
  std::vector<at::Tensor> columns;  // int64 [batch, ...]: input_ids, then a token of each step
};

c10::intrusive_ptr<DecoderSteps> decoder_decode(const c10::intrusive_ptr<DecoderModel>& model,
                                                const at::Tensor& input_ids, const OptionalTensor& attention_mask,
                                                int64_t max_new_tokens, bool do_sample, double temperature,
                                                int64_t top_k, double top_p, double min_p, int64_t seed,
                                                double repetition_penalty, int64_t no_repeat_ngram_size,
                                                std::vector<int64_t> eos_token_ids, int64_t pad_token_id) {
  const int64_t vocabulary = model->model->config.vocabulary;
  TORCH_CHECK_VALUE(pad_token_id >= 0 && pad_token_id < vocabulary, "generate: expected pad_token_id in [0, ",
                    vocabulary, "), got ", pad_token_id);
  models::DecodingOptions options{
      .sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p},
      .rules = {.repetition_penalty = repetition_penalty, .no_repeat_ngram_size = no_repeat_ngram_size},
      .eos_token_ids = std::move(eos_token_ids)};
  models::check(options.rules, vocabulary);
  if (do_sample) {
    options.uniform = [seed](int64_t text, int64_t new_tokens) {
      const runtime::Philox philox{.seed = static_cast<uint64_t>(seed), .step = static_cast<uint64_t>(new_tokens) + 1};
      return philox.word(static_cast<uint64_t>(text)) * 0x1p-32;
    };
  }
  auto steps = c10::make_intrusive<DecoderSteps>(model->model, std::move(options), pad_token_id);
  steps->decoding.begin(texts_of(input_ids, attention_mask), max_new_tokens);
  steps->columns = {input_ids};
  return steps;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  using Past = c10::intrusive_ptr<DecoderPast>;
  using Self = c10::intrusive_ptr<DecoderModel>;
  library.class_<DecoderPast>("DecoderPast")
      .def("length", [](const Past& self) { return self->cache.length(); })
      .def("clear", [](const Past& self) { self->cache.clear(); });
  library.class_<DecoderModel>("DecoderModel")
      .def(torch::init<std::string, std::string>())
      .def("warning", [](const Self& self) { return self->warning; })
      .def("config", &DecoderModel::config)
      .def("eos_token_ids", [](const Self& self) { return self->model->config.eos_token_ids; })
      .def("generation_defaults", &DecoderModel::generation_defaults)
      .def("parameters", &DecoderModel::parameters)
      .def("as_stored", &DecoderModel::as_stored)
      .def("add_lora", &DecoderModel::add_lora)
      .def("load_adapter", &DecoderModel::load_adapter)
      .def("adapters", &DecoderModel::adapters)
      .def("save_adapter",
           [](const Self& self, const std::string& directory, const std::string& base) {
             models::save_adapter(*self->model, directory, {.base_model = base});
           })
      .def("merge_lora", &DecoderModel::merge_lora)
      .def("clone", &DecoderModel::clone)
      .def("train", [](const Self& self, bool mode) { self->model->train(mode); })
      .def("checkpoint_activations", [](const Self& self, bool on) { self->model->checkpoint_activations(on); })
      .def("forward", &DecoderModel::forward)
      .def("loss", &DecoderModel::loss)
      .def("start", [](const Self& self) { return c10::make_intrusive<DecoderPast>(self->model->make_cache()); })
      .def("extend", &DecoderModel::extend)
      .def("save", &DecoderModel::save);
  using Steps = c10::intrusive_ptr<DecoderSteps>;
  library.class_<DecoderSteps>("DecoderSteps")
      .def("done", [](const Steps& self) { return self->decoding.done(); })
      .def("step", &DecoderSteps::step)
      .def("sequences", [](const Steps& self) { return at::cat(self->columns, 1); });
  library.def(
      "decoder_decode(__torch__.torch.classes.plimsoll.DecoderModel model, Tensor input_ids, Tensor? attention_mask, "
      "*, int max_new_tokens, bool do_sample, float temperature, int top_k, float top_p, float min_p, "
      "int seed, float repetition_penalty, int no_repeat_ngram_size, int[] eos_token_ids, int pad_token_id) -> "
      "__torch__.torch.classes.plimsoll.DecoderSteps",
      &decoder_decode);
}

}  // namespace plimsoll::bind
