// The files of adapters of every family, and those that are refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/lora/testing.h"

namespace plimsoll::models {
namespace {

TEST(ModelsLoraFiles, AnAdapterIsWhatItWasAfterSavingAndLoading) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    SCOPED_TRACE(traits_of(config.family).model_type);
    const at::Tensor tokens = testing::some_tokens(config);
    Decoder model = testing::adapted(config), base = testing::small_base(config);
    const io::TemporaryDirectory directory;
    save_adapter(*model, directory.path(), {.base_model = "some/base"});
    const LoraOptions loaded = load_adapter(*base, directory.path());
    EXPECT_EQ(loaded.adapters, testing::kSmallLora.adapters);
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(base->logits(tokens), model->logits(tokens)));
    EXPECT_FALSE(at::equal(testing::small_base(config)->logits(tokens), model->logits(tokens)));
    const nlohmann::json written = io::read_json(directory.path() / "adapter_config.json");
    EXPECT_EQ(written["base_model_name_or_path"], "some/base");
    EXPECT_EQ(written["fan_in_fan_out"], config.family == DecoderFamily::kGpt2);
  }
}

TEST(ModelsLoraFiles, TargetsInAFileMeanTheSameModules) {
  for (const auto& [given, written] : std::vector<std::pair<std::vector<std::string>, nlohmann::json>>{
           {{"q_proj", "self_attn.v_proj"}, {"q_proj", "v_proj"}},
           {{"layers.0.self_attn.q_proj"}, {"model.layers.0.self_attn.q_proj"}}}) {
    const Decoder model = testing::adapted(testing::config_of(DecoderFamily::kLlama), {.targets = given});
    const io::TemporaryDirectory directory;
    save_adapter(*model, directory.path());
    EXPECT_EQ(io::read_json(directory.path() / "adapter_config.json")["target_modules"], written);
  }
}

class ModelsBadAdapter : public ::testing::Test {
 protected:
  ModelsBadAdapter() { save_adapter(*testing::adapted(config_), directory_.path()); }

  std::filesystem::path config_file() const { return directory_.path() / "adapter_config.json"; }
  std::filesystem::path tensor_file() const { return directory_.path() / "adapter_model.safetensors"; }

  std::string error_with(const nlohmann::json& members) const {
    nlohmann::json config = io::read_json(config_file());
    const nlohmann::json before = config;
    config.update(members);
    io::write_file(config_file(), config.dump());
    std::string error = testing::error_of([&] { load_adapter(*testing::small_base(config_), directory_.path()); });
    io::write_file(config_file(), before.dump());
    const std::string place = config_file().native() + ": ";
    return error.starts_with(place) ? error.substr(place.size()) : error;
  }
  std::string error_with_tensors(const std::function<void(io::TensorMap&)>& change) const {
    const io::TensorMap before = io::SafetensorsFile(tensor_file()).tensors();
    io::TensorMap changed;
    for (const auto& [name, tensor] : before) changed.emplace(name, tensor.clone());
    change(changed);
    const io::TemporaryDirectory other;
    std::filesystem::copy_file(config_file(), other.path() / "adapter_config.json");
    io::save_safetensors(other.path() / "adapter_model.safetensors", changed);
    const std::string error = testing::error_of([&] { load_adapter(*testing::small_base(config_), other.path()); });
    const std::string place = (other.path() / "adapter_model.safetensors").native() + ": ";
    return error.starts_with(place) ? error.substr(place.size()) : error;
  }

  const DecoderConfig config_ = testing::config_of(DecoderFamily::kLlama);
  const io::TemporaryDirectory directory_;
  const std::string first_ = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight";
};

TEST_F(ModelsBadAdapter, MembersThatAreNotSupportedAreNamed) {
  EXPECT_EQ(error_with(nlohmann::json::object()), "no error");
  EXPECT_EQ(error_with({{"use_dora", false}, {"rank_pattern", nlohmann::json::object()}, {"modules_to_save", nullptr}}),
            "no error");
  EXPECT_EQ(error_with({{"peft_type", "IA3"}}), "peft_type: expected \"LORA\", got \"IA3\"");
  EXPECT_EQ(error_with({{"bias", "all"}}), "bias: expected \"none\", got \"all\"");
  EXPECT_EQ(error_with({{"task_type", "SEQ_CLS"}}), "task_type: expected \"CAUSAL_LM\", got \"SEQ_CLS\"");
  EXPECT_EQ(error_with({{"use_dora", true}}), "use_dora: expected none: it is not supported, got true");
  EXPECT_EQ(error_with({{"modules_to_save", {"lm_head"}}}),
            "modules_to_save: expected none: it is not supported, got [\"lm_head\"]");
  EXPECT_EQ(error_with({{"rank_pattern", {{"q_proj", 4}}}}),
            "rank_pattern: expected none: it is not supported, got {\"q_proj\":4}");
  EXPECT_EQ(error_with({{"some_new_method", 3}}), "some_new_method: expected none: it is not supported, got 3");
  EXPECT_EQ(error_with({{"init_lora_weights", "pissa"}}),
            "init_lora_weights: expected an initialisation that leaves the base as it is, got \"pissa\"");
  EXPECT_EQ(error_with({{"r", 0}}), "r: expected 1 or more, got 0");
  EXPECT_EQ(error_with({{"r", "many"}}), "r: expected an integer, got \"many\"");
  EXPECT_EQ(error_with({{"r", nullptr}}), "expected a member 'r', got none");
  EXPECT_EQ(error_with({{"lora_dropout", 1.5}}), "lora_dropout: expected one in [0, 1), got 1.5");
  EXPECT_EQ(error_with({{"target_modules", {1}}}), "target_modules: expected names, got [1]");
}

TEST_F(ModelsBadAdapter, TensorsThatDoNotFitTheModelAreNamed) {
  EXPECT_EQ(error_with_tensors([](io::TensorMap&) {}), "no error");
  EXPECT_EQ(error_with_tensors([&](io::TensorMap& tensors) { tensors.erase(first_); }),
            "expected a tensor '" + first_ + "', got none");
  EXPECT_EQ(error_with_tensors([&](io::TensorMap& tensors) {
              tensors[first_] = at::zeros({4, 87});
            }),
            "expected '" + first_ + "' of numbers of shape [3, 87], got F32 of shape [4, 87]");
  EXPECT_EQ(error_with_tensors([&](io::TensorMap& tensors) {
              tensors[first_] = at::zeros({3, 87}, at::kLong);
            }),
            "expected '" + first_ + "' of numbers of shape [3, 87], got I64 of shape [3, 87]");
  EXPECT_EQ(
      error_with_tensors([](io::TensorMap& tensors) {
        tensors["base_model.model.lm_head.lora_A.weight"] = at::zeros({3, 60});
      }),
      "expected adapters of linear layers of the model's blocks alone, got base_model.model.lm_head.lora_A.weight");
  EXPECT_EQ(error_with_tensors([](io::TensorMap& tensors) { tensors.clear(); }),
            "expected tensors of adapters, got none");
}

}  // namespace
}  // namespace plimsoll::models
