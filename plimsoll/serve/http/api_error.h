// Errors that a request is answered with when it cannot be served, as OpenAI's API says them.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "plimsoll/io/error.h"

namespace plimsoll::serve {

// The text as what() can have it, which ends at the first NUL.
inline std::string escape_nul(std::string text) {
  for (size_t at = 0; (at = text.find('\0', at)) != text.npos;) text.replace(at, 1, "\\u0000");
  return text;
}

struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& message, std::string field = {}, std::string reason = {})
      : std::runtime_error(escape_nul(message)),
        status(http_status),
        param(std::move(field)),
        code(std::move(reason)) {}

  int status;
  std::string param, code;  // empty: null
};

// The message of a request for which there is no memory; its status is 503.
inline constexpr const char* kNoMemory = "expected enough memory for the request, got none from the system";

// {"error": {...}}.
nlohmann::json to_json(const ApiError& error);

// A status of 400 that names the field.
template <class... Args>
[[noreturn]] void refuse_field(const std::string& field, fmt::format_string<Args...> text, const Args&... args) {
  throw ApiError(400, field + ": " + io::compose(text, args...), field);
}

}  // namespace plimsoll::serve
