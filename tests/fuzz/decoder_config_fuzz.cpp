// Bytes up to the first zero as a decoder's config.json, the rest as its generation_config.json: a config that is the same when
// it is written and read again, or one line.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>

#include "files.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/models/decoder/config_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace plimsoll;
  static const fuzz::Files files;
  const std::string_view all = fuzz::text_of(data, size);
  const size_t zero = std::min(all.find('\0'), all.size());
  files.write("config.json", all.substr(0, zero));
  files.write("generation_config.json", all.substr(std::min(zero + 1, all.size())));
  try {
    const nlohmann::json file = io::read_json(files.path() / "config.json");
    models::DecoderConfig config = models::read_decoder_config(file, "config.json");
    models::read_config_dtype(file, "config.json");
    if (models::read_decoder_config(models::decoder_config_json(config), "written") != config) std::abort();
    models::read_generation_config(io::read_json(files.path() / "generation_config.json"), "generation", config);
    models::check(config);
  } catch (const io::Error& error) {
    fuzz::check_line(error.what());
  } catch (const c10::Error& error) {
    fuzz::check_line(error.what_without_backtrace());
  }
  return 0;
}
