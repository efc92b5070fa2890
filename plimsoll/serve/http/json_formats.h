// The response_format of requests, and formats of schemas. The formats that were asked for last are kept, with what is
// known of their texts.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "plimsoll/serve/json/format.h"
#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::serve {

// Safe to use from several threads.
class JsonFormats {
 public:
  // The tokenizer has to outlive it. vocabulary: tokens of the model.
  JsonFormats(const tokenize::Tokenizer& tokenizer, int64_t vocabulary)
      : tokenizer_(tokenizer), vocabulary_(vocabulary) {}

  // field: the response_format of this body, or null. None: any text. Throws ApiError, which names the field at fault.
  std::shared_ptr<const JsonFormat> read(nlohmann::json field, std::string_view body);
  // The format of a schema, whose place in the errors, JsonSchemaError, begins with "schema".
  std::shared_ptr<const JsonFormat> of(const nlohmann::ordered_json& schema);

 private:
  std::shared_ptr<const TokenTrie> tokens();

  const tokenize::Tokenizer& tokenizer_;
  const int64_t vocabulary_;
  std::mutex mutex_;  // of what follows
  std::shared_ptr<const TokenTrie> tokens_;
  std::list<std::pair<std::string, std::shared_ptr<const JsonFormat>>>
      recent_;  // by their schemas; the last used first
};

}  // namespace plimsoll::serve
