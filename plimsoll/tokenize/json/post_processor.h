// The ids that a tokenizer.json puts around a text: TemplateProcessing, ByteLevel (which puts none), and Sequences.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace plimsoll::tokenize {

struct PostProcessor {
  // null: nothing. `name` opens the errors. vocabulary: ids are below it.
  PostProcessor(const nlohmann::json& component, const std::string& name, int64_t vocabulary);

  std::vector<int64_t> before, after;
};

}  // namespace plimsoll::tokenize
