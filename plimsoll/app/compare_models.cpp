#include "plimsoll/app/compare_models.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "plimsoll/app/finite_json.h"
#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

constexpr int64_t kChunk = 1 << 20;  // values in FP64 at a time

std::string kind_of(const at::Tensor& tensor) {
  return fmt::format("{} {}", io::safetensors_dtype(tensor.scalar_type()), tensor.sizes().vec());
}

void measure_difference(const at::Tensor& first, const at::Tensor& second, TensorDifference& difference) {
  const at::Tensor a = first.reshape({-1}), b = second.reshape({-1});
  double distance = 0, length = 0;  // squared
  for (int64_t begin = 0; begin < a.numel(); begin += kChunk) {
    const int64_t count = std::min(kChunk, a.numel() - begin);
    const at::Tensor from = a.narrow(0, begin, count).to(at::kDouble);
    const at::Tensor change = b.narrow(0, begin, count).to(at::kDouble).sub_(from);
    distance += change.square().sum().item<double>();
    length += from.square().sum().item<double>();
    const double largest = change.abs().max().item<double>();
    if (!(largest <= difference.largest)) difference.largest = largest;  // NaN stays
  }
  difference.relative_l2 = distance == 0 ? 0 : std::sqrt(distance / length);
}

TensorDifference compare_tensor(const std::string& name, const io::HuggingFaceDirectory& first,
                                const io::HuggingFaceDirectory& second) {
  TensorDifference difference{.name = name, .first = {}, .second = {}, .relative_l2 = {}};
  at::Tensor a, b;
  if (first.contains(name)) difference.first = kind_of(a = first.tensor(name));
  if (second.contains(name)) difference.second = kind_of(b = second.tensor(name));
  if (a.defined() && b.defined() && a.sizes() == b.sizes()) measure_difference(a, b, difference);
  for (const auto* directory : {&first, &second}) {
    if (directory->contains(name)) directory->releaser(name)();
  }
  return difference;
}

std::vector<std::string> different_members(const json& first, const json& second) {
  std::set<std::string> names;
  for (const auto& [name, value] : first.items()) {
    if (!second.contains(name) || second.at(name) != value) names.insert(name);
  }
  for (const auto& [name, value] : second.items()) {
    if (!first.contains(name)) names.insert(name);
  }
  return {names.begin(), names.end()};
}

}  // namespace

ModelDifference compare_models(const std::filesystem::path& first, const std::filesystem::path& second) {
  const io::HuggingFaceDirectory a(first), b(second);
  ModelDifference result{.config = different_members(a.config(), b.config()), .tensors = {}};
  std::vector<std::string> names = a.names();
  for (const std::string& name : b.names()) {
    if (!a.contains(name)) names.push_back(name);
  }
  for (const std::string& name : names) {
    result.tensors.push_back(compare_tensor(name, a, b));
    io::check_mapped_files();
  }
  return result;
}

json to_json(const TensorDifference& difference) {
  return {{"name", difference.name},
          {"first", difference.first.empty() ? json() : json(difference.first)},
          {"second", difference.second.empty() ? json() : json(difference.second)},
          {"relative_l2", difference.relative_l2 ? finite_or_null(*difference.relative_l2) : json()},
          {"largest", difference.relative_l2 ? finite_or_null(difference.largest) : json()}};
}

}  // namespace plimsoll::app
