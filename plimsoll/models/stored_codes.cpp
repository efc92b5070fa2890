#include "plimsoll/models/stored_codes.h"

#include <ATen/ops/isfinite.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <span>
#include <string_view>

#include "plimsoll/io/error.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::models {
namespace {

using Scales = CodeLayout::Scales;

constexpr std::string_view kWeightMember = "weight", kPacked = "weight_packed", kGlobalScale = "weight_global_scale";
constexpr std::string_view kScale = "weight_scale", kInverseScale = "weight_scale_inv";
constexpr std::array<std::string_view, 2> kActivationScales = {"input_scale", "input_global_scale"};
constexpr int64_t kBlock = 128;

using runtime::divide_up;

// The name of another tensor of the same module.
std::string beside(const std::string& name, std::string_view other) {
  return io::compose("{}{}", std::string_view(name).substr(0, name.size() - kWeightMember.size()), other);
}

std::string codes_name(const std::string& name, const CodeLayout& layout) {
  return layout.is_e2m1() ? beside(name, kPacked) : name;
}

int64_t group_of(const CodeLayout& layout) { return layout.kind == ops::CodeKind::kNvfp4 ? 16 : 32; }

// Whether a byte of the tensor is one that is_bad(byte) holds of.
template <class Predicate>
bool any_byte(const at::Tensor& bytes, const Predicate& is_bad) {
  constexpr int64_t kGrain = int64_t{1} << 16;
  const auto* data = static_cast<const uint8_t*>(bytes.const_data_ptr());
  std::atomic<bool> found = false;
  runtime::parallel_for(bytes.numel(), kGrain, [&](int64_t begin, int64_t end) {
    bool bad = false;
    for (int64_t i = begin; i < end; ++i) bad |= is_bad(data[i]);
    if (bad) found = true;
  });
  return found;
}

bool is_e4m3_nan(uint8_t code) { return (code & 0x7f) == 0x7f; }

// Whether the name is "X.member", or the member alone.
bool is_member(std::string_view name, std::string_view member) {
  if (!name.ends_with(member)) return false;
  return name.size() == member.size() || name[name.size() - member.size() - 1] == '.';
}

}  // namespace

bool is_scale_of_codes(std::string_view name) {
  return is_member(name, kScale) || is_member(name, kInverseScale) || is_member(name, kGlobalScale);
}

std::vector<int64_t> scale_shape(const CodeLayout& layout, int64_t rows, int64_t cols) {
  switch (layout.scales) {
    case Scales::kTensor:
      return {1};
    case Scales::kRows:
      return {rows, 1};
    case Scales::kBlocks:
      return {divide_up(rows, kBlock), divide_up(cols, kBlock)};
    case Scales::kGroups:
      return {rows, cols / group_of(layout)};
  }
  runtime::unexpected("stored codes: scales", static_cast<int>(layout.scales));
}

StoredCodes::StoredCodes(const io::HuggingFaceDirectory& directory)
    : directory_(directory),
      config_(read_quantization_config(directory.config(), (directory.path() / "config.json").native())) {}

void StoredCodes::expect_codes() const {
  if (!any() || !config_->has_codes) return;
  const auto is_of_codes = [&](const std::string& name) {
    return is_member(name, kPacked) || is_scale_of_codes(name) ||
           (is_member(name, kWeightMember) && directory_.tensor(name).scalar_type() == at::kFloat8_e4m3fn);
  };
  if (std::ranges::any_of(directory_.names(), is_of_codes)) return;
  io::fail("{}: expected codes of config.json's quantization_config, {}, got values alone", directory_.path().native(),
           config_->name);
}

bool StoredCodes::has(const std::string& name) const {
  return directory_.contains(name) || (any() && layout(name) != nullptr);
}

std::optional<ops::CodeKind> StoredCodes::kind(const std::string& name) const {
  const CodeLayout* found = layout(name);
  return found == nullptr ? std::nullopt : std::optional(found->kind);
}

std::map<std::string, std::vector<int64_t>> StoredCodes::shapes() const {
  std::map<std::string, std::vector<int64_t>> result;
  if (!any()) return result;
  for (const std::string& name : directory_.names()) {
    const at::Tensor tensor = directory_.tensor(name);
    if (tensor.dim() != 2) continue;
    if (is_member(name, kPacked)) {
      const std::string module = name.substr(0, name.size() - kPacked.size());
      result[io::compose("{}{}", module, kWeightMember)] = {tensor.size(0), 2 * tensor.size(1)};
    } else if (is_member(name, kWeightMember) && tensor.scalar_type() == at::kFloat8_e4m3fn) {
      result[name] = tensor.sizes().vec();
    }
  }
  return result;
}

std::string StoredCodes::where(const std::string& name) const {
  return io::compose("{}: tensor '{}'", directory_.file_of(name).native(), name);
}

const CodeLayout* StoredCodes::layout(const std::string& name) const {
  if (!any() || !name.ends_with(kWeightMember)) return nullptr;
  const bool is_value = directory_.contains(name) && directory_.tensor(name).scalar_type() != at::kFloat8_e4m3fn;
  const bool is_e2m1 = directory_.contains(beside(name, kPacked));
  // A scale alone: the codes are what is missing.
  const bool has_scale = directory_.contains(beside(name, config_->layouts.front().scale));
  if (!is_e2m1 && (is_value || (!directory_.contains(name) && !has_scale))) return nullptr;
  std::vector<const CodeLayout*> layouts;
  for (const CodeLayout& each : config_->layouts) {
    const bool is_lost = !is_e2m1 && !directory_.contains(name);
    if (is_lost || each.is_e2m1() == is_e2m1) layouts.push_back(&each);
  }
  const std::string stored = is_e2m1 ? beside(name, kPacked) : name;
  if (layouts.empty()) {
    io::fail("{}: expected values or codes of config.json's quantization_config, {}, got {}", where(stored),
             config_->name, io::safetensors_dtype(directory_.tensor(stored).scalar_type()));
  }
  return &chosen(name, layouts);
}

// With several, the one whose scales are there.
const CodeLayout& StoredCodes::chosen(const std::string& name, const std::vector<const CodeLayout*>& layouts) const {
  const auto fits = [&](const CodeLayout* layout) {
    if (layout->is_e2m1()) {
      const bool has_global = directory_.contains(beside(name, kGlobalScale));
      return has_global == (layout->kind == ops::CodeKind::kNvfp4);
    }
    const std::string scale = beside(name, layout->scale);
    if (!directory_.contains(scale) || !directory_.contains(name)) return false;
    const at::Tensor codes = directory_.tensor(name);
    return codes.dim() == 2 && directory_.tensor(scale).sizes() == scale_shape(*layout, codes.size(0), codes.size(1));
  };
  const auto found = std::ranges::find_if(layouts, fits);
  return found == layouts.end() ? *layouts.front() : **found;
}

void StoredCodes::check_is_not_ignored(const std::string& name) const {
  const std::string module = name.substr(0, name.size() - kWeightMember.size() - 1);
  if (std::ranges::find(config_->ignored, module) == config_->ignored.end()) return;
  io::fail("{}: tensor '{}': expected values, as {} of config.json names the module, got codes",
           directory_.path().native(), name, config_->ignore_member);
}

void StoredCodes::expect(const std::string& name, const std::vector<int64_t>& shape,
                         io::HuggingFaceDirectory::Shapes& shapes) const {
  const CodeLayout* found = layout(name);
  if (found == nullptr) {
    shapes.emplace(name, shape);
    return;
  }
  check_is_not_ignored(name);
  const int64_t rows = shape.at(0), cols = shape.at(1);
  if (found->is_e2m1() && cols % group_of(*found) != 0) {
    io::fail("{}: tensor '{}': expected a multiple of {} columns, got {}", directory_.path().native(), name,
             group_of(*found), cols);
  }
  const auto one = [&](const std::string& scale) {
    const bool has_no_dimension = directory_.contains(scale) && directory_.tensor(scale).dim() == 0;
    shapes.emplace(scale, has_no_dimension ? std::vector<int64_t>{} : std::vector<int64_t>{1});
  };
  shapes.emplace(codes_name(name, *found), found->is_e2m1() ? std::vector{rows, cols / 2} : shape);
  if (found->scales == Scales::kTensor) {
    one(beside(name, found->scale));
  } else {
    shapes.emplace(beside(name, found->scale), scale_shape(*found, rows, cols));
  }
  if (found->kind == ops::CodeKind::kNvfp4) one(beside(name, kGlobalScale));
  for (const std::string_view scale : kActivationScales) {
    if (directory_.contains(beside(name, scale))) one(beside(name, scale));
  }
}

ops::CodeSource StoredCodes::read(const std::string& name) const {
  const CodeLayout& found = *layout(name);
  const std::string codes_at = codes_name(name, found), scale_at = beside(name, found.scale);
  const auto bytes_of = [&](const std::string& tensor, std::span<const at::ScalarType> dtypes) {
    const at::Tensor stored = directory_.tensor(tensor);
    if (std::ranges::find(dtypes, stored.scalar_type()) == dtypes.end()) {
      io::fail("{}: expected {}, got {}", where(tensor), io::safetensors_dtype(dtypes.front()),
               io::safetensors_dtype(stored.scalar_type()));
    }
    return stored.view(at::kByte);
  };
  const std::function<void()> done_codes = directory_.releaser(codes_at), done_scale = directory_.releaser(scale_at);
  ops::CodeSource result{.done = [done_codes, done_scale] {
    done_codes();
    done_scale();
  }};
  if (!found.is_e2m1()) {
    result.stored.codes = bytes_of(codes_at, std::array{at::kFloat8_e4m3fn});
    if (any_byte(result.stored.codes, is_e4m3_nan))
      io::fail("{}: expected codes without NaN, got NaN", where(codes_at));
    result.stored.scale = scale_of_e4m3(scale_at, found, result.stored.codes);
    result.done();
    return result;
  }
  result.stored.codes = bytes_of(codes_at, std::array{at::kByte});
  if (found.kind == ops::CodeKind::kNvfp4) {
    result.stored.scale = bytes_of(scale_at, std::array{at::kFloat8_e4m3fn});
    const auto is_bad = [](uint8_t code) { return is_e4m3_nan(code) || code > 0x80; };
    if (any_byte(result.stored.scale, is_bad)) {
      io::fail("{}: expected scales that are finite and not negative, got another", where(scale_at));
    }
    result.stored.tensor_scale = tensor_scale(beside(name, kGlobalScale));
  } else {
    result.stored.scale = bytes_of(scale_at, std::array{at::kByte, at::kFloat8_e8m0fnu});
    if (any_byte(result.stored.scale, [](uint8_t code) { return code == 0xff; })) {
      io::fail("{}: expected scales without NaN, got NaN", where(scale_at));
    }
  }
  result.done();
  return result;
}

at::Tensor StoredCodes::scale_of_e4m3(const std::string& name, const CodeLayout& layout,
                                      const at::Tensor& codes) const {
  const at::Tensor stored = directory_.tensor(name);
  const at::ScalarType dtype = stored.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    io::fail("{}: expected F32, BF16 or F16, got {}", where(name), io::safetensors_dtype(dtype));
  }
  const at::Tensor scale = stored.to(at::kFloat);
  if (!(scale.isfinite() & scale.ge(0)).all().item<bool>()) {
    io::fail("{}: expected scales that are finite and not negative, got another", where(name));
  }
  const int64_t rows = codes.size(0);
  switch (layout.scales) {
    case Scales::kTensor:
      return scale.reshape({1, 1}).expand({rows, 1}).contiguous();
    case Scales::kRows:
      return scale;
    case Scales::kBlocks:
      return scale.repeat_interleave(kBlock, 0).narrow(0, 0, rows).contiguous();
    case Scales::kGroups:
      break;
  }
  runtime::unexpected("stored codes: scales of E4M3", static_cast<int>(layout.scales));
}

// The file has the factor that the scales of blocks were made with: it divides.
float StoredCodes::tensor_scale(const std::string& name) const {
  const at::Tensor stored = directory_.tensor(name);
  if (stored.scalar_type() != at::kFloat) {
    io::fail("{}: expected F32, got {}", where(name), io::safetensors_dtype(stored.scalar_type()));
  }
  const float factor = stored.item<float>(), scale = 1.0f / factor;
  if (!std::isfinite(factor) || factor <= 0 || !std::isfinite(scale)) {
    io::fail("{}: expected a finite number above 0, and so its inverse, got {}", where(name), factor);
  }
  return scale;
}

std::vector<std::string> StoredCodes::activation_scales() const {
  std::vector<std::string> result;
  if (!any()) return result;
  for (const std::string& name : directory_.names()) {
    const bool is_one =
        std::ranges::any_of(kActivationScales, [&](std::string_view scale) { return name.ends_with(scale); });
    if (is_one) result.push_back(name);
  }
  return result;
}

}  // namespace plimsoll::models
