// A decoder-only model from a Hugging Face directory: llama, mistral, qwen2, qwen3, gemma3_text, gpt2, gpt_neox.
//
//   const models::LoadedModel loaded = models::load("SmolLM2-135M-Instruct", {.dtype = models::WeightDtype::kBf16});
//   models::TokenCache cache = loaded.model->make_cache();
//   at::Tensor logits = loaded.model->extend(tokens, cache);  // int64 [1, seq] -> fp32 [1, 1, vocabulary]
//   int64_t next = logits[0][-1].argmax().item<int64_t>();
//   while (!loaded.ends(next)) {
//     logits = loaded.model->extend(at::full({1, 1}, next, at::kLong), cache);
//     next = logits[0][-1].argmax().item<int64_t>();
//   }
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "plimsoll/models/language_model.h"
#include "plimsoll/models/overflowed_weights.h"
#include "plimsoll/models/weight_dtype.h"
#include "plimsoll/ops/linear/weight_source.h"

namespace plimsoll::models {

// Weights that the directory has as codes (docs/quantized_files.md).
enum class CodedWeights : uint8_t {
  kRefused,  // for work on values
  kHeld,  // products multiply by the codes as they are; `dtype`, no codes, is that of the computation and of all else
  kDecoded,  // values in `dtype`
};

struct LoadOptions {
  WeightDtype dtype =
      WeightDtype::kAsStored;  // codes: products multiply by them, for inference alone unless `codes` says
  CodedWeights coded = CodedWeights::kRefused;
  ops::HeldOptions codes = {};  // of kFp8 and of coded weights, whose kind is the dtype's, or the directory's
  Warn warn = {};  // hears which weights the dtype cannot hold, which are Inf, and of scales of activations, not read
};

struct LoadedModel {
  std::shared_ptr<LanguageModel> model;  // in eval mode
  at::ScalarType dtype;                  // of its weights, and of what it computes outside a scope
  // Tokens that generation_config.json names, else config.json.
  std::vector<int64_t> eos_token_ids;  // each ends a text; may be empty
  std::optional<int64_t> bos_token_id, pad_token_id;

  bool ends(int64_t token) const {
    return std::find(eos_token_ids.begin(), eos_token_ids.end(), token) != eos_token_ids.end();
  }
};

// Whether the directory's config.json is of a family that load() takes.
bool is_decoder_directory(const std::filesystem::path& directory);

// Whether the directory's config.json says that weights are codes.
bool has_coded_weights(const std::filesystem::path& directory);

// Weights that the file stores as the model has them, in the dtype asked for, are views of the mapped file, read when
// they are first used. Codes of the directory are read once when it is loaded. A file that is shortened later reads as zeros:
// Decoding, T5Decoding, generate() and serve::Engine throw io::Error then; who calls the model itself asks
// io::check_mapped_files() (io/mapping_guard.h) before what came of it is used. Throws io::Error, one line, which names what is
// not supported and tensors that are missing, of another shape or unknown.
LoadedModel load(const std::filesystem::path& directory, const LoadOptions& options = {});

// Copies config.json, generation_config.json and the files of the tokenizer, those that are there.
void copy_companions(const std::filesystem::path& source, const std::filesystem::path& directory);

struct SaveOptions {
  // Directory that the model came from: files of its tokenizer and generation_config.json are copied, and members of
  // its config.json that Plimsoll does not read are kept.
  std::filesystem::path source = {};
  int64_t shard_bytes = int64_t{5} << 30;  // a file of weights is no larger, unless one tensor is
};

// Writes a model that load() gives, as transformers does: config.json, and model.safetensors or its shards, in the dtype
// of the parameters. Makes the directory; files of these names in it are replaced, and shards of an earlier model removed.
// Throws io::Error; another kind of model is one.
void save(const LanguageModel& model, const std::filesystem::path& directory, const SaveOptions& options = {});

}  // namespace plimsoll::models
