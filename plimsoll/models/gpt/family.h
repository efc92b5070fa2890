// The gpt's row of the table of families (families.h says what each function does).
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "plimsoll/models/families.h"

namespace plimsoll::models {

nlohmann::json gpt_shape_of(const Sizes& sizes);
void check_gpt(const nlohmann::json& shape, const StoredTensors& tensors);
std::shared_ptr<LanguageModel> make_gpt(const nlohmann::json& shape);

}  // namespace plimsoll::models
