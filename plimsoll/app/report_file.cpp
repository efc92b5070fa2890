#include "plimsoll/app/report_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace plimsoll::app {
namespace {

using nlohmann::json;

// Bytes that are read of a file at most; no report has an object of more.
constexpr size_t kMostBytes = size_t{64} << 20;

// Fields that the first object of a report has, which configs, checkpoints and data sets have not.
const std::vector<std::vector<std::string_view>>& report_fields() {
  static const std::vector<std::vector<std::string_view>> fields = {
      {"step", "loss"},                        // train, finetune
      {"baseline", "results"},                 // compare
      {"traceEvents"},                         // train --profile
      {"place", "counts"},                     // finetune --show-data
      {"name", "first", "second"},             // compare DIR DIR
      {"id", "log_probability"},               // generate, logprobs
      {"text", "tokens", "end"},               // generate, where no token came
      {"name", "headroom_bits"},               // inspect, --watch
      {"incident", "op"},                      // --watch
      {"layer", "op", "kernel"},               // audit
      {"input", "tokens"},                     // t5 encode, t5 score
      {"input", "ids"},                        // t5 generate
      {"time", "path", "status"},              // serve
      {"dtypes"},                              // parity, mmlu
      {"matrices", "coded_bytes"},             // quantize
      {"activation_bytes_per_token", "runs"},  // shard-plan
  };
  return fields;
}

bool has_fields(const json& object, const std::vector<std::string_view>& fields) {
  return std::ranges::all_of(fields, [&](std::string_view field) { return object.contains(field); });
}

bool is_report(const json& value) {
  if (!value.is_object()) return false;
  return std::ranges::any_of(report_fields(), [&](const auto& fields) { return has_fields(value, fields); });
}

json parse(std::string_view text) { return json::parse(text, nullptr, /*allow_exceptions=*/false); }

std::string beginning_of(const std::filesystem::path& path, size_t bytes) {
  std::ifstream file(path, std::ios::binary);
  if (file.peek() != '{') return "";
  std::string text(std::min(bytes, kMostBytes), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

bool is_free_for_report(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return true;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error || bytes == 0) return !error;
  const std::string text = beginning_of(path, bytes);
  return is_report(parse(std::string_view(text).substr(0, text.find('\n')))) || is_report(parse(text));
}

}  // namespace plimsoll::app
