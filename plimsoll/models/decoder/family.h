// The decoder's row of the table of families (families.h says what each function does).
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "plimsoll/models/families.h"

namespace plimsoll::models {

void check_decoder(const nlohmann::json& shape, const StoredTensors& tensors);
std::shared_ptr<LanguageModel> make_decoder(const nlohmann::json& shape);

}  // namespace plimsoll::models
