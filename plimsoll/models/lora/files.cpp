#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/models/lora/config.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/models/lora/places.h"
#include "plimsoll/nn/undrawn.h"

namespace plimsoll::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kAdapterFile = "adapter_model.safetensors";

std::string name_in_file(const LoraModule& module, char which) {
  return fmt::format("base_model.model.{}.lora_{}.weight", module.name, which);
}

// B has the rows of the weight; only those of heads in turn stand in another order in a file.
StoredOrder order_of_b(const LoraPlace& place) {
  return place.order == StoredOrder::kHeadsInTurn ? place.order : StoredOrder::kRows;
}

class AdapterReader {
 public:
  explicit AdapterReader(const fs::path& path) : path_(path), tensors_(io::SafetensorsFile(path).tensors()) {
    for (const auto& [name, tensor] : tensors_) unread_.insert(name);
  }

  bool has(const LoraModule& module) const {
    return tensors_.contains(name_in_file(module, 'A')) || tensors_.contains(name_in_file(module, 'B'));
  }

  // Fp32 [sizes].
  at::Tensor read(const std::string& name, const std::vector<int64_t>& sizes) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) io::fail("{}: expected a tensor '{}', got none", path_.native(), name);
    unread_.erase(name);
    const at::Tensor& tensor = found->second;
    if (tensor.sizes().vec() != sizes || !at::isFloatingType(tensor.scalar_type())) {
      io::fail("{}: expected '{}' of numbers of shape {}, got {} of shape {}", path_.native(), name, sizes,
               io::safetensors_dtype(tensor.scalar_type()), tensor.sizes().vec());
    }
    const at::Tensor values = tensor.to(at::kFloat);
    if (!values.isfinite().all().item<bool>()) {
      io::fail("{}: expected finite numbers in '{}', got Inf or NaN", path_.native(), name);
    }
    return values;
  }

  void check_all_read() const {
    if (unread_.empty()) return;
    io::fail("{}: expected adapters of linear layers of the model's blocks alone, got {}", path_.native(),
             fmt::format("{}", fmt::join(unread_, ", ")));
  }

 private:
  const fs::path path_;
  const io::TensorMap tensors_;
  std::set<std::string> unread_;
};

struct ReadPlace {
  LoraPlace place;
  std::vector<at::Tensor> a, b;  // of its modules
};

std::vector<ReadPlace> read_places(const fs::path& path, const DecoderConfig& config, int64_t rank) {
  AdapterReader reader(path);
  std::vector<ReadPlace> result;
  for (LoraPlace& place : lora_places(config)) {
    std::erase_if(place.modules, [&](const LoraModule& module) { return !reader.has(module); });
    if (place.modules.empty()) continue;
    ReadPlace read{.place = std::move(place), .a = {}, .b = {}};
    for (const LoraModule& module : read.place.modules) {
      read.a.push_back(reader.read(name_in_file(module, 'A'), {rank, read.place.in_features}));
      const at::Tensor b = reader.read(name_in_file(module, 'B'), {module.part.rows, rank});
      read.b.push_back(rows_of(b, order_of_b(read.place), config));
    }
    result.push_back(std::move(read));
  }
  reader.check_all_read();
  if (result.empty()) io::fail("{}: expected tensors of adapters, got none", path.native());
  return result;
}

// The shortest names that mean these modules alone: the last parts of their names where no other module ends so.
std::vector<std::string> targets_of(const DecoderConfig& config, const std::vector<AdaptedPlace>& adapted) {
  std::set<std::string> names, last_parts;
  for (const AdaptedPlace& each : adapted) {
    for (const LoraModule& module : each.place.modules) {
      names.insert(module.name);
      last_parts.insert(module.part.name);
    }
  }
  const std::vector<LoraPlace> places = lora_places(config);
  const bool all = std::all_of(places.begin(), places.end(), [&](const LoraPlace& place) {
    return std::all_of(place.modules.begin(), place.modules.end(), [&](const LoraModule& module) {
      return names.contains(module.name) || !last_parts.contains(module.part.name);
    });
  });
  const std::set<std::string>& targets = all ? last_parts : names;
  return {targets.begin(), targets.end()};
}

struct ReadAdapter {
  LoraOptions options;
  std::vector<AdaptedPlace> places;
};

ReadAdapter read_files(const DecoderConfig& decoder, const fs::path& directory) {
  const at::NoGradGuard no_grad;
  const fs::path config_file = directory / kConfigFile;
  if (!fs::exists(config_file) && !io::list_checkpoints(directory).empty()) {
    io::fail("{}: expected {}, got a run without: one of adapters has it when finetune --resume has ended it",
             directory.native(), kConfigFile);
  }
  const AdapterConfig config = read_adapter_config(io::read_json(config_file), config_file.native());
  const std::vector<ReadPlace> places = read_places(directory / kAdapterFile, decoder, config.options.adapters.rank);
  const nn::UndrawnParameters undrawn;
  ReadAdapter read{.options = config.options, .places = {}};
  for (const auto& [place, a, b] : places) {
    const nn::Lora lora = make_lora(place, config.options.adapters);
    for (size_t i = 0; i < a.size(); ++i) {
      lora->a[i].copy_(a[i]);
      lora->b[i].copy_(b[i]);
    }
    read.places.push_back({place, lora});
  }
  io::check_mapped_files();
  return read;
}

}  // namespace

LoraOptions load_adapter(LanguageModel& model, const fs::path& directory) {
  DecoderImpl& decoder = lora_decoder(model);
  const ReadAdapter read = read_files(decoder.config, directory);
  freeze_base(decoder);
  for (const auto& [place, lora] : read.places) layer_of(decoder, place).add_lora(place.prefix, lora);
  return read.options;
}

std::shared_ptr<const nn::LoraSet> read_adapter(const LanguageModel& model, const fs::path& directory) {
  const DecoderImpl& decoder = lora_decoder(model);
  expect_no_adapters(decoder);
  auto set = std::make_shared<nn::LoraSet>();
  ReadAdapter read = read_files(decoder.config, directory);
  for (auto& [place, lora] : read.places) {
    lora->eval();
    for (const nn::ScaledLayer::Product& product : layer_of(decoder, place).products()) {
      if (product.prefix == place.prefix) set->add(product.state, lora);
    }
  }
  return set;
}

void save_adapter(const LanguageModel& model, const fs::path& directory, const SaveAdapterOptions& options) {
  const at::NoGradGuard no_grad;
  const DecoderImpl& decoder = lora_decoder(model);
  const std::vector<AdaptedPlace> adapted = needed_adapters(decoder);
  io::TensorMap tensors;
  for (const auto& [place, lora] : adapted) {
    for (size_t i = 0; i < place.modules.size(); ++i) {
      tensors.emplace(name_in_file(place.modules[i], 'A'), lora->a[i].to(at::kFloat));
      tensors.emplace(name_in_file(place.modules[i], 'B'),
                      stored_of(lora->b[i].to(at::kFloat), order_of_b(place), decoder.config));
    }
  }
  const AdapterConfig config{
      .options = {.adapters = adapted.front().lora->options, .targets = targets_of(decoder.config, adapted)},
      .base_model = options.base_model};
  const bool transposes = adapted.front().place.order == StoredOrder::kTransposed;
  io::with_our_errors([&] {
    fs::create_directories(directory);
    io::save_safetensors(directory / kAdapterFile, tensors, {{"format", "pt"}});
    io::write_file(directory / kConfigFile, adapter_config_json(config, transposes).dump(2) + "\n");
  });
}

}  // namespace plimsoll::models
