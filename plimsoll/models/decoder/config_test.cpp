#include "plimsoll/models/decoder/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/io/error.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/traits.h"

namespace plimsoll::models {
namespace {

using nlohmann::json;

constexpr const char* kLlamaJson = R"({"model_type": "llama", "vocab_size": 777, "hidden_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 88,
  "max_position_embeddings": 64})";
constexpr const char* kGemmaJson = R"({"model_type": "gemma3_text", "vocab_size": 777, "hidden_size": 48,
  "num_hidden_layers": 7, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 88,
  "max_position_embeddings": 64, "head_dim": 20, "query_pre_attn_scalar": 168, "sliding_window": 16})";
constexpr const char* kGpt2Json = R"({"model_type": "gpt2", "vocab_size": 777, "n_embd": 48, "n_layer": 2,
  "n_head": 6, "n_positions": 64, "n_inner": null})";
constexpr const char* kGptNeoxJson = R"({"model_type": "gpt_neox", "vocab_size": 777, "hidden_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 88, "max_position_embeddings": 64})";

DecoderConfig read(const char* text, const json& changes = json::object()) {
  json config = json::parse(text);
  config.update(changes);
  return read_decoder_config(config, "config.json");
}

std::string error_of(const char* text, const json& changes) {
  try {
    read(text, changes);
  } catch (const io::Error& error) {
    return error.what();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void expect_error(const char* text, const json& changes, const std::string& part) {
  const std::string error = error_of(text, changes);
  EXPECT_NE(error.find(part), std::string::npos) << changes << ": " << error;
}

TEST(DecoderConfig, WhatIsWrittenIsReadBackAsTheSame) {
  const json llama3 = {{"rope_scaling",
                        {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 32}}},
                       {"rope_theta", 500000.0},
                       {"attention_bias", true},
                       {"eos_token_id", {2, 5}}};
  json qwen = json::parse(kLlamaJson);
  qwen.update({{"model_type", "qwen3"}, {"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}});
  json mistral = json::parse(kLlamaJson);
  mistral.update({{"model_type", "mistral"}, {"sliding_window", 8}, {"head_dim", 12}});
  json qwen2 = json::parse(kLlamaJson);
  qwen2.update({{"model_type", "qwen2"}, {"sliding_window", 8}, {"tie_word_embeddings", true}, {"eos_token_id", 3}});
  for (const DecoderConfig& config :
       {read(kLlamaJson), read(kLlamaJson, llama3), read(kGemmaJson), read(kGpt2Json),
        read(kGpt2Json, {{"scale_attn_weights", false}, {"resid_pdrop", 0}}), read(kGptNeoxJson),
        read(kGptNeoxJson, {{"rotary_pct", 0.38}, {"use_parallel_residual", false}}),
        read_decoder_config(qwen, "config.json"), read_decoder_config(qwen2, "config.json"),
        read_decoder_config(mistral, "config.json")}) {
    const json written = decoder_config_json(config);
    EXPECT_EQ(read_decoder_config(written, "config.json"), config) << written;
  }
}

TEST(DecoderConfig, OlderNamesSayTheSame) {
  const json scaling = {{"type", "linear"}, {"factor", 2.0}};
  const json parameters = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  EXPECT_EQ(read(kLlamaJson, {{"rope_theta", 5e5}, {"rope_scaling", scaling}}),
            read(kLlamaJson, {{"rope_parameters", parameters}}));
  EXPECT_EQ(read(kGptNeoxJson, {{"rotary_emb_base", 500}, {"rotary_pct", 0.5}}),
            read(kGptNeoxJson, {{"rope_parameters", {{"rope_theta", 500}, {"partial_rotary_factor", 0.5}}}}));
  const json by_reach = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 1e6}}},
                         {"sliding_attention", {{"rope_theta", 2e4}}}};
  EXPECT_EQ(read(kGemmaJson, {{"rope_theta", 1e6},
                              {"rope_local_base_freq", 2e4},
                              {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}}),
            read(kGemmaJson, {{"rope_parameters", by_reach}}));
  EXPECT_EQ(read_config_dtype({{"torch_dtype", "bfloat16"}}, "config.json"), at::kBFloat16);
  EXPECT_EQ(read_config_dtype({{"dtype", "float16"}, {"torch_dtype", "float32"}}, "config.json"), at::kHalf);
  EXPECT_EQ(read_config_dtype(json::object(), "config.json"), std::nullopt);
}

TEST(DecoderConfig, LayersOfGemmaHaveAWindowFiveTimesOfSix) {
  const DecoderConfig config = read(kGemmaJson);
  for (size_t layer = 0; layer < config.reaches.size(); ++layer) {
    EXPECT_EQ(config.reaches[layer], layer == 5 ? Reach::kFull : Reach::kSliding);
  }
  EXPECT_EQ(config.rotary_of(Reach::kFull).theta, 1e6);
  EXPECT_EQ(config.rotary_of(Reach::kSliding).theta, 1e4);
  EXPECT_EQ(read(kGemmaJson,
                 {{"layer_types", json::array({"full_attention", "full_attention", "full_attention", "full_attention",
                                               "sliding_attention", "full_attention", "full_attention"})}})
                .reaches[4],
            Reach::kSliding);
}

TEST(DecoderConfig, GenerationConfigOverridesTheEnds) {
  DecoderConfig config = read(kLlamaJson, {{"eos_token_id", 2}, {"bos_token_id", 1}});
  read_generation_config({{"eos_token_id", {3, 4}}, {"pad_token_id", 0}}, "generation_config.json", config);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, 0);
}

TEST(DecoderConfig, AnIdOutsideOfTheVocabularyStandsForNone) {
  const DecoderConfig config =
      read(kLlamaJson, {{"eos_token_id", {2, 777}}, {"pad_token_id", -1}, {"bos_token_id", 999}});
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(config.pad_token_id, std::nullopt);
  EXPECT_EQ(config.bos_token_id, std::nullopt);
}

TEST(DecoderConfig, AWindowOrAnEndThatIsAbsentIsTransformersAndNullIsNone) {
  const json mistral = {{"model_type", "mistral"}};
  EXPECT_EQ(read(kLlamaJson, mistral).window, 4096);
  EXPECT_EQ(read(kLlamaJson, mistral).reaches[1], Reach::kSliding);
  EXPECT_EQ(read(kLlamaJson, {{"model_type", "mistral"}, {"sliding_window", nullptr}}).window, 0);
  const json qwen = {{"model_type", "qwen2"}, {"use_sliding_window", true}, {"max_window_layers", 1}};
  EXPECT_EQ(read(kLlamaJson, qwen).window, 4096);
  EXPECT_EQ(read(kLlamaJson, {{"model_type", "qwen2"}}).window, 0);
  EXPECT_EQ(read(kLlamaJson).eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(read(kGemmaJson).eos_token_ids, std::vector<int64_t>{1});
  EXPECT_EQ(read(kGpt2Json).eos_token_ids, std::vector<int64_t>{}) << "beyond its vocabulary";
  EXPECT_EQ(read(kLlamaJson, {{"eos_token_id", nullptr}}).eos_token_ids, std::vector<int64_t>{});
  EXPECT_EQ(read(kLlamaJson).bos_token_id, 1);
  EXPECT_EQ(read(kGemmaJson).pad_token_id, 0);
}

TEST(DecoderConfig, MistakesNameTheMemberAndWhatIsSupported) {
  expect_error(kLlamaJson, {{"model_type", "mamba"}}, "gemma3_text");
  expect_error(kLlamaJson, {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}, "rope_type: expected");
  expect_error(kLlamaJson, {{"rope_scaling", {{"rope_type", "linear"}}}}, "expected a member 'factor'");
  expect_error(kLlamaJson, {{"rope_scaling", {{"type", "linear"}, {"factor", "two"}}}},
               "config.json: rope_scaling: factor");
  expect_error(kLlamaJson, {{"rope_parameters", {{"rope_type", "yarn"}}}}, "config.json: rope_parameters: rope_type");
  expect_error(kGemmaJson, {{"rope_scaling", {{"rope_type", "yarn"}}}}, "config.json: rope_scaling: rope_type");
  expect_error(kLlamaJson, {{"rope_scaling", 3}}, "rope_scaling: expected an object");
  expect_error(kLlamaJson, {{"hidden_act", "mish"}}, "hidden_act: expected");
  expect_error(kLlamaJson, {{"hidden_act", "gelu"}}, "a gated form");
  expect_error(kLlamaJson, {{"vocab_size", nullptr}}, "'vocab_size'");
  expect_error(kLlamaJson, {{"vocab_size", "many"}}, "vocab_size: expected an integer");
  expect_error(kLlamaJson, {{"num_hidden_layers", -1}}, "num_hidden_layers of 1");
  expect_error(kLlamaJson, {{"num_hidden_layers", 1 << 30}}, "num_hidden_layers of 1");
  expect_error(kLlamaJson, {{"num_key_value_heads", 4}}, "num_key_value_heads that divides 6");
  expect_error(kLlamaJson, {{"num_attention_heads", 0}}, "num_attention_heads of 1");
  expect_error(kLlamaJson, {{"head_dim", 7}}, "an even number of channels");
  expect_error(kLlamaJson, {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: expected 1 for llama");
  expect_error(kLlamaJson, {{"eos_token_id", "end"}}, "eos_token_id");
  expect_error(kLlamaJson, {{"rms_norm_eps", -1}}, "epsilon");
  expect_error(kGemmaJson, {{"layer_types", {"full_attention", "linear_attention"}}}, "sliding_attention");
  expect_error(kGemmaJson, {{"layer_types", {"full_attention"}}}, "layer_types of 7 layers, got 1");
  expect_error(kLlamaJson, {{"layer_types", {"full_attention", "sliding_attention"}}},
               "layer_types: expected none, or full_attention for each of 2 layers of llama");
  expect_error(kLlamaJson, {{"layer_types", {"mamba", "full_attention"}}}, "layer_types: expected full_attention");
  EXPECT_EQ(read(kLlamaJson, {{"layer_types", {"full_attention", "full_attention"}}}), read(kLlamaJson));
  expect_error(kGemmaJson, {{"sliding_window", 0}}, "sliding_window >= 1");
  expect_error(kGemmaJson, {{"final_logit_softcapping", 30.0}}, "final_logit_softcapping: expected none");
  expect_error(kGemmaJson, {{"rope_parameters", {{"rope_type", "default"}}}}, "for each type of layer");
  expect_error(kGpt2Json, {{"scale_attn_by_inverse_layer_idx", true}}, "scale_attn_by_inverse_layer_idx");
  EXPECT_THROW(read_config_dtype({{"dtype", "int8"}}, "config.json"), io::Error);
  EXPECT_FALSE(is_decoder({{"model_type", "t5"}}));
  EXPECT_TRUE(is_decoder({{"model_type", "qwen2"}}));
}

}  // namespace
}  // namespace plimsoll::models
