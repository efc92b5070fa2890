#include "python/recipe_text.h"

#include <c10/util/Exception.h>

#include <stdexcept>
#include <string>

namespace plimsoll::python {

ops::SharedRecipe recipe_of(std::string_view json) {
  // The layers of a model bring the same text, one after the other.
  thread_local std::string last_json;
  thread_local ops::SharedRecipe last;
  if (last == nullptr || json != last_json) {
    try {
      last = std::make_shared<const recipe::Recipe>(recipe::from_json(json));
    } catch (const std::invalid_argument& error) {
      TORCH_CHECK_VALUE(false, error.what());
    }
    last_json = json;
  }
  return last;
}

}  // namespace plimsoll::python
