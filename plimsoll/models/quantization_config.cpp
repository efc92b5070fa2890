#include "plimsoll/models/quantization_config.h"

#include <algorithm>
#include <array>

#include "plimsoll/io/error.h"
#include "plimsoll/models/config_members.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::models {
namespace {

using nlohmann::json;
using Scales = CodeLayout::Scales;

constexpr const char* kQuantizationMember = "quantization_config";
constexpr int64_t kScaleBlock = 128;

// Schemes of compressed-tensors, by the strategy of their weights.
struct Scheme {
  const char* format;
  int64_t bits;
  const char* strategy;
  int64_t group_size;  // 0: none
  Scales scales;
  ops::CodeKind kind;
};
constexpr std::array<Scheme, 5> kSchemes = {
    {{"float-quantized", 8, "tensor", 0, Scales::kTensor, ops::CodeKind::kE4m3Rows},
     {"float-quantized", 8, "channel", 0, Scales::kRows, ops::CodeKind::kE4m3Rows},
     {"float-quantized", 8, "block", 0, Scales::kBlocks, ops::CodeKind::kE4m3Blocks},
     {"nvfp4-pack-quantized", 4, "tensor_group", 16, Scales::kGroups, ops::CodeKind::kNvfp4},
     {"mxfp4-pack-quantized", 4, "group", 32, Scales::kGroups, ops::CodeKind::kMxfp4}}};
constexpr const char* kMixed = "mixed-precision";  // the format of a file whose groups have several
constexpr const char* kFormats = "float-quantized, nvfp4-pack-quantized or mxfp4-pack-quantized";

class QuantizationConfigReader {
 public:
  QuantizationConfigReader(const json& object, const std::string& name)
      : members_(object, name + ": " + kQuantizationMember) {}

  QuantizationConfig read() {
    const std::string method = members_.text("quant_method", "");
    if (method == "fp8") return fine_grained();
    if (method == "compressed-tensors") return compressed_tensors();
    io::fail("{}: quant_method: expected fp8 or compressed-tensors, got '{}'", members_.name(), method);
  }

 private:
  QuantizationConfig fine_grained() {
    expect_text(members_, "activation_scheme", "dynamic");
    expect_text(members_, "fmt", "e4m3");
    expect_blocks(members_, "weight_block_size");
    const char* ignores = members_.has("ignored_layers") ? "ignored_layers" : "modules_to_not_convert";
    return {.name = "fp8",
            .layouts = {layout_of(QuantizedFormat::kFp8Block)},
            .ignore_member = ignores,
            .ignored = names(ignores)};
  }

  QuantizationConfig compressed_tensors() {
    for (const char* member : {"kv_cache_scheme", "sparsity_config", "transform_config"}) {
      if (members_.has(member) && !members_.at(member).empty()) {
        io::fail("{}: {}: expected none, got {}", members_.name(), member, members_.at(member).dump());
      }
    }
    const std::string format = members_.text("format", "");
    const json groups = members_.has("config_groups") ? members_.at("config_groups") : json();
    if (!groups.is_object() || groups.empty()) {
      io::fail("{}: config_groups: expected an object with a group, got {}", members_.name(), groups.dump());
    }
    constexpr const char* kCompressed = "compressed";
    QuantizationConfig result{.name = format,
                              .ignore_member = "ignore",
                              .ignored = names("ignore"),
                              .has_codes = members_.text("quantization_status", kCompressed) == kCompressed};
    for (const auto& [name, group] : groups.items()) {
      const std::string where = members_.name() + ": config_groups: " + name;
      if (!group.is_object()) io::fail("{}: expected an object, got {}", where, group.dump());
      result.layouts.push_back(layout_of_group(ConfigMembers(group, where), format));
    }
    return result;
  }

  static CodeLayout layout_of_group(const ConfigMembers& group, const std::string& format_of_all) {
    if (group.has("output_activations")) {
      io::fail("{}: output_activations: expected none, got {}", group.name(), group.at("output_activations").dump());
    }
    const std::string format = group.text("format", format_of_all);
    if (format != format_of_all && !format_of_all.empty() && format_of_all != kMixed) {
      io::fail("{}: format: expected {}, as {} has it, got '{}'", group.name(), format_of_all, kQuantizationMember,
               format);
    }
    const json object = group.has("weights") ? group.at("weights") : json();
    const ConfigMembers weights(object, group.name() + ": weights");
    if (!object.is_object()) io::fail("{}: expected an object, got {}", weights.name(), object.dump());
    const auto of_format = [&](const Scheme& scheme) { return format == scheme.format; };
    if (std::ranges::none_of(kSchemes, of_format)) {
      io::fail("{}: format: expected {}, got '{}'", group.name(), kFormats, format);
    }
    check_codes(weights, *std::ranges::find_if(kSchemes, of_format));
    const std::string strategy = weights.text("strategy", "");
    for (const Scheme& scheme : kSchemes) {
      if (!of_format(scheme) || strategy != scheme.strategy) continue;
      expect_integer(weights, "group_size", scheme.group_size);
      if (scheme.scales == Scales::kBlocks) expect_blocks(weights, "block_structure");
      return {.kind = scheme.kind, .scales = scheme.scales};
    }
    std::string known;
    for (const Scheme& scheme : kSchemes) {
      if (of_format(scheme)) known += (known.empty() ? "" : " or ") + std::string(scheme.strategy);
    }
    io::fail("{}: strategy: expected {} for {}, got '{}'", weights.name(), known, format, strategy);
  }

  static void check_codes(const ConfigMembers& weights, const Scheme& scheme) {
    expect_text(weights, "type", "float");
    expect_integer(weights, "num_bits", scheme.bits);
    if (!weights.flag("symmetric", true)) io::fail("{}: symmetric: expected true, got false", weights.name());
    for (const char* member : {"actorder", "dynamic"}) {
      if (weights.has(member) && weights.at(member) != false) {
        io::fail("{}: {}: expected none, got {}", weights.name(), member, weights.at(member).dump());
      }
    }
  }

  static void expect_text(const ConfigMembers& members, const char* member, const std::string& expected) {
    const std::string text = members.text(member, expected);
    if (text != expected) io::fail("{}: {}: expected {}, got '{}'", members.name(), member, expected, text);
  }

  static void expect_integer(const ConfigMembers& members, const char* member, int64_t expected) {
    const int64_t number = members.integer(member, expected);
    if (number != expected) io::fail("{}: {}: expected {}, got {}", members.name(), member, expected, number);
  }

  static void expect_blocks(const ConfigMembers& members, const char* member) {
    const json expected = {kScaleBlock, kScaleBlock};
    const json blocks = members.has(member) ? members.at(member) : json();
    if (blocks != expected) {
      io::fail("{}: {}: expected {}, got {}", members.name(), member, expected.dump(), blocks.dump());
    }
  }

  // Modules that a member lists, without patterns of compressed-tensors ("re:...").
  std::vector<std::string> names(const char* member) const {
    if (!members_.has(member)) return {};
    const json& list = members_.at(member);
    std::vector<std::string> result;
    if (!list.is_array() || !std::ranges::all_of(list, [](const json& each) { return each.is_string(); })) {
      io::fail("{}: {}: expected a list of names, got {}", members_.name(), member, list.dump());
    }
    for (const json& each : list) {
      const std::string& module = each.get_ref<const std::string&>();
      if (!module.starts_with("re:")) result.push_back(module);
    }
    return result;
  }

  ConfigMembers members_;
};

}  // namespace

std::optional<QuantizationConfig> read_quantization_config(const json& config, const std::string& name) {
  const ConfigMembers members(config, name);
  if (!members.has(kQuantizationMember)) return std::nullopt;
  const json& object = members.at(kQuantizationMember);
  if (!object.is_object()) {
    io::fail("{}: {}: expected an object, got {}", name, kQuantizationMember, object.dump());
  }
  return QuantizationConfigReader(object, name).read();
}

CodeLayout layout_of(QuantizedFormat format) {
  switch (format) {
    case QuantizedFormat::kFp8:
      return {};
    case QuantizedFormat::kFp8Block:
      return {.kind = ops::CodeKind::kE4m3Blocks, .scales = Scales::kBlocks, .scale = "weight_scale_inv"};
    case QuantizedFormat::kNvfp4:
      return {.kind = ops::CodeKind::kNvfp4, .scales = Scales::kGroups};
    case QuantizedFormat::kMxfp4:
      return {.kind = ops::CodeKind::kMxfp4, .scales = Scales::kGroups};
  }
  runtime::unexpected("quantization config: format", static_cast<int>(format));
}

json quantization_config_json(QuantizedFormat format, const std::vector<std::string>& ignored) {
  const CodeLayout layout = layout_of(format);
  if (layout.scales == Scales::kBlocks) {
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {kScaleBlock, kScaleBlock}},
            {"modules_to_not_convert", ignored}};
  }
  const Scheme& scheme = *std::ranges::find_if(
      kSchemes, [&](const Scheme& each) { return each.kind == layout.kind && each.scales == layout.scales; });
  const json no_value;
  json weights = {
      {"num_bits", scheme.bits}, {"type", "float"},      {"symmetric", true},      {"strategy", scheme.strategy},
      {"dynamic", false},        {"actorder", no_value}, {"group_size", no_value}, {"block_structure", no_value}};
  if (scheme.group_size > 0) weights["group_size"] = scheme.group_size;
  json inputs = no_value;  // E2M1: activations stay values
  if (format == QuantizedFormat::kFp8) {
    inputs = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}};
  } else {
    weights["scale_dtype"] = format == QuantizedFormat::kNvfp4 ? "torch.float8_e4m3fn" : "torch.uint8";
  }
  const json group = {{"targets", json::array({"Linear"})},
                      {"weights", weights},
                      {"input_activations", inputs},
                      {"output_activations", no_value},
                      {"format", scheme.format}};
  return {{"quant_method", "compressed-tensors"},  {"format", scheme.format}, {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}}, {"ignore", ignored},       {"kv_cache_scheme", no_value}};
}

}  // namespace plimsoll::models
