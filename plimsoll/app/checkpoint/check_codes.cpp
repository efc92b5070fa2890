#include "plimsoll/app/checkpoint/check_codes.h"

#include "plimsoll/io/error.h"
#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/stored_codes.h"

namespace plimsoll::app {
namespace {

// A quantization_config that is not read has no codes to be compared with; whoever loads the model says why.
bool has_known_codes(const std::filesystem::path& path) {
  try {
    return models::has_coded_weights(path);
  } catch (const io::Error&) {
    return false;
  }
}

}  // namespace

void check_codes(const std::filesystem::path& path) {
  if (!has_known_codes(path)) return;
  const io::HuggingFaceDirectory directory(path);
  const models::StoredCodes codes(directory);
  const auto matrices = codes.shapes();
  io::HuggingFaceDirectory::Shapes shapes;
  for (const auto& [name, shape] : matrices) codes.expect(name, shape, shapes);
  directory.check_tensors(shapes, models::is_scale_of_codes);
  for (const auto& [name, shape] : matrices) codes.read(name);
}

}  // namespace plimsoll::app
