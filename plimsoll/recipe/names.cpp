#include "plimsoll/recipe/names.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <vector>

#include "plimsoll/recipe/recipe.h"

namespace plimsoll::recipe {
namespace {

int lower(char c) { return std::tolower(static_cast<unsigned char>(c)); }

struct Named {
  std::string_view name;
  Recipe (*make)();
};

const Named kRecipes[] = {
    {"fp32", [] { return Recipe(HighPrecision{Format::kFp32}); }},
    {"bf16", [] { return Recipe(HighPrecision{Format::kBf16}); }},
    {"fp16", [] { return Recipe(HighPrecision{Format::kFp16}); }},
    {"fp8", [] { return Recipe(DelayedScaling{}); }},
    {"fp8-current", [] { return Recipe(CurrentScaling{}); }},
    {"fp8-row", [] { return Recipe(CurrentScaling{.granularity = kPerRow}); }},
    {"fp8-block", [] { return Recipe(BlockScaling{}); }},
    {"mxfp8", [] { return Recipe(Mxfp8{}); }},
    {"nvfp4", [] { return Recipe(Nvfp4Scaling{}); }},
    {"nvfp4-4over6", [] { return Recipe(Nvfp4Scaling{.four_over_six = true}); }},
    {"ms-eden", [] { return Recipe(Nvfp4Scaling{.ms_eden = true}); }},
    {"mxfp4", [] { return Recipe(Mxfp4Scaling{}); }},
};

struct NameOf {
  std::string_view operator()(const HighPrecision& args) const { return format::info(args.format).name; }
  std::string_view operator()(const DelayedScaling&) const { return "fp8"; }
  std::string_view operator()(const CurrentScaling& args) const {
    return args.granularity == kPerRow ? "fp8-row" : "fp8-current";
  }
  std::string_view operator()(const BlockScaling&) const { return "fp8-block"; }
  std::string_view operator()(const Mxfp8&) const { return "mxfp8"; }
  std::string_view operator()(const Nvfp4Scaling& args) const {
    return args.ms_eden ? "ms-eden" : args.four_over_six ? "nvfp4-4over6" : "nvfp4";
  }
  std::string_view operator()(const Mxfp4Scaling&) const { return "mxfp4"; }
};

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: rows i - 2, i - 1 and i of the table.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string_view> known) {
  std::vector<std::string_view> sorted(known.begin(), known.end());
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::string_view a, std::string_view b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  std::string text = std::string(kind) + ": expected ";
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0) text += i + 1 == sorted.size() ? " or " : ", ";
    text += sorted[i];
  }
  return text + ", got '" + std::string(name) + "'";
}

std::string_view Recipe::name() const { return is_mixed() ? "mixed" : std::visit(NameOf{}, scaling_); }

const std::vector<std::string_view>& names() {
  static const std::vector<std::string_view> list = [] {
    std::vector<std::string_view> all;
    for (const Named& entry : kRecipes) all.push_back(entry.name);
    return all;
  }();
  return list;
}

Recipe by_name(std::string_view name) {
  for (const Named& entry : kRecipes) {
    if (entry.name == name) return entry.make();
  }
  throw std::invalid_argument(unknown_name("recipe", name, names()));
}

}  // namespace plimsoll::recipe
