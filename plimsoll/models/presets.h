// Models that are trained from nothing, by name.
#pragma once

#include <cstdint>
#include <span>

#include "plimsoll/recipe/named.h"

namespace plimsoll::models {

struct Family;

struct Sizes {
  int64_t layers = 0, dim = 0, heads = 0, context = 0;

  friend bool operator==(const Sizes&, const Sizes&) = default;
};

struct Preset {
  const Family* family = nullptr;
  Sizes sizes;

  friend bool operator==(const Preset&, const Preset&) = default;
};

// "tiny", "small", "gpt2".
std::span<const recipe::Named<Preset>> presets();

}  // namespace plimsoll::models
