// --json-object and --json-schema FILE, of a command that writes text.
#pragma once

#include <filesystem>
#include <memory>

#include "plimsoll/app/text/text_format.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

struct JsonTexts {
  bool objects = false;
  std::filesystem::path schema;  // empty: none
};

Option json_object_option(JsonTexts& texts);
Option json_schema_option(JsonTexts& texts);

// Texts as `plimsoll serve` writes them for a response_format; none for texts of any kind. Throws UsageError, or io::Error
// for a file that is no schema.
std::shared_ptr<app::TextFormat> format_of(const JsonTexts& texts, const app::TextModel& model);

}  // namespace plimsoll::cli
