#include "plimsoll/app/finetune/adapters.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plimsoll/app/checkpoint/safetensors_in.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/app/train/first_model.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/mapped_file.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/io/sha256.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/tensors.h"

namespace plimsoll::app {

namespace {

// A name for the weights in a Hugging Face directory: of their sizes and of a part of each mebibyte, since all of them would
// take seconds to read.
std::string weights_name(const std::filesystem::path& directory) {
  constexpr size_t kStride = 1 << 20, kPart = 4096;
  io::Sha256 digest;
  for (const std::filesystem::path& file : safetensors_in(directory)) {
    const io::MappedFile mapped(file);
    const std::span<const std::byte> bytes = mapped.bytes();
    const uint64_t size = bytes.size();
    digest.add(std::as_bytes(std::span(&size, 1)));
    for (size_t begin = 0; begin < bytes.size(); begin += kStride) {
      digest.add(bytes.subspan(begin, std::min(kPart, bytes.size() - begin)));
    }
  }
  io::check_mapped_files();
  return digest.digits();
}

}  // namespace

nlohmann::json adapters_json(const FinetuneOptions& options) {
  return {{"r", options.lora->adapters.rank},
          {"alpha", options.lora->adapters.alpha},
          {"dropout", options.lora->adapters.dropout},
          {"targets", options.lora->targets},
          {"base", recipe::name_of(kBases, options.base)},
          {"weights of the base", weights_name(options.run.source)}};
}

int64_t adapter_parameters(const FinetuneOptions& options) {
  return models::lora_parameters(config_of_directory(options.run.source), *options.lora);
}

void check_adapters(const FinetuneOptions& options) {
  using models::WeightDtype;
  const TrainOptions& run = options.run;
  const std::string base = "--base " + std::string(recipe::name_of(kBases, options.base));
  if (run.release_gradients && run.shard != shard::Sharing::kNone) {
    refuse("--release-gradients: expected --shard none, got {}", recipe::name_of(kSharings, run.shard));
  }
  if (!options.lora) {
    if (options.base != WeightDtype::kAsStored)
      refuse("{}: expected --lora, which has a frozen base, got --full", base);
    if (models::has_coded_weights(run.source)) {
      refuse(
          "--full: expected weights that are values, got codes in {}; `plimsoll convert --dtype bf16` makes values of "
          "them",
          run.source.native());
    }
    return;
  }
  if (run.masters != optim::MasterKind::kFp32) {
    refuse("--masters {}: expected --full, got --lora, whose adapters train in fp32",
           recipe::name_of(optim::kMasters, run.masters));
  }
  if (run.release_gradients) refuse("--release-gradients: expected --full, got --lora, whose gradients are small");
  const bool has_codes = options.base == WeightDtype::kFp8 || models::has_coded_weights(run.source);
  if (has_codes && run.recipe.value.has_four_bits()) {
    refuse("{}: expected a recipe of eight bits or more, got {}", base, run.recipe.text);
  }
  if (has_codes && run.shard == shard::Sharing::kFsdp) {
    refuse("{}: expected --shard none, ddp, zero1 or zero2, got fsdp, which has no parts of codes", base);
  }
  try {
    adapter_parameters(options);
  } catch (const c10::ValueError& error) {
    refuse("--{}", error.what_without_backtrace());
  }
}

std::shared_ptr<models::LanguageModel> adapted_model(const FinetuneOptions& options) {
  const models::LoadedModel loaded =
      models::load(options.run.source,
                   {.dtype = options.base, .coded = models::CodedWeights::kHeld, .codes = {.has_gradient = true}});
  at::manual_seed(static_cast<uint64_t>(options.run.seed));
  models::add_lora(*loaded.model, *options.lora);
  return loaded.model;
}

void save_adapters(const FinetuneOptions& options) {
  const auto model = adapted_model(options);
  const auto latest = io::load_latest_checkpoint(options.run.out);
  if (!latest) fail("{}: expected a run with a checkpoint, got none", options.run.out.native());
  models::load_tensors(model->module(), latest->checkpoint.sections.at("model"));
  models::save_adapter(*model, options.run.out, {.base_model = options.run.source.native()});
}

}  // namespace plimsoll::app
