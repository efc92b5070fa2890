// Any bytes as config.json: a T5Config that passes its check, or one line.
#include <c10/util/Exception.h>

#include "files.h"
#include "plimsoll/app/error.h"
#include "plimsoll/io/error.h"
#include "plimsoll/models/t5/read_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace plimsoll;
  static const fuzz::Files files;
  static const bool written = [] {
    files.write("model.safetensors", fuzz::safetensors_of("shared.weight", 2, 3));
    return true;
  }();
  if (!written) return 0;
  files.write("config.json", fuzz::text_of(data, size));
  try {
    models::check(models::t5_config(io::HuggingFaceDirectory(files.path())));
  } catch (const app::Error& error) {
    fuzz::check_line(error.what());
  } catch (const io::Error& error) {
    fuzz::check_line(error.what());
  } catch (const c10::Error& error) {
    fuzz::check_line(error.what_without_backtrace());
  }
  return 0;
}
