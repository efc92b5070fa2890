#include "plimsoll/app/checkpoint/check_codes.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/io/json.h"
#include "plimsoll/models/stored_codes.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

// Unreadable ones have no codes to be compared with; whoever loads the model says why.
bool has_quantization_config(const fs::path& path) {
  if (!fs::exists(path / "config.json")) return false;
  try {
    return io::read_json(path / "config.json").contains("quantization_config");
  } catch (const io::Error&) {
    return false;
  }
}

std::optional<models::StoredCodes> supported_codes(const io::HuggingFaceDirectory& directory) {
  try {
    return models::StoredCodes(directory);
  } catch (const io::Error&) {
    return std::nullopt;
  }
}

// Shapes of the matrices that are codes, by the names of their weights.
std::map<std::string, std::vector<int64_t>> coded_matrices(const io::HuggingFaceDirectory& directory) {
  constexpr std::string_view kPacked = ".weight_packed", kWeight = ".weight";
  std::map<std::string, std::vector<int64_t>> matrices;
  for (const std::string& name : directory.names()) {
    const at::Tensor tensor = directory.tensor(name);
    if (tensor.dim() != 2) continue;
    if (name.ends_with(kPacked)) {
      matrices[name.substr(0, name.size() - kPacked.size() + kWeight.size())] = {tensor.size(0), 2 * tensor.size(1)};
    } else if (name.ends_with(kWeight) && tensor.scalar_type() == at::kFloat8_e4m3fn) {
      matrices[name] = tensor.sizes().vec();
    }
  }
  return matrices;
}

}  // namespace

bool is_weight_scale(std::string_view name) {
  constexpr std::array<std::string_view, 3> kScales = {".weight_scale", ".weight_scale_inv", ".weight_global_scale"};
  return std::ranges::any_of(kScales, [&](std::string_view scale) { return name.ends_with(scale); });
}

void check_codes(const fs::path& path) {
  if (!has_quantization_config(path)) return;
  const io::HuggingFaceDirectory directory(path);
  const std::optional<models::StoredCodes> codes = supported_codes(directory);
  if (!codes) return;
  const auto matrices = coded_matrices(directory);
  io::HuggingFaceDirectory::Shapes shapes;
  for (const auto& [name, shape] : matrices) codes->expect(name, shape, shapes);
  directory.check_tensors(shapes, is_weight_scale);
  for (const auto& [name, shape] : matrices) codes->read(name);
}

}  // namespace plimsoll::app
