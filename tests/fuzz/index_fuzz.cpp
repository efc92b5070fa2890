// Any bytes as model.safetensors.index.json beside two shards: tensors that can be read, or one line.
#include "files.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/hugging_face_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace plimsoll;
  static const fuzz::Files files;
  static const bool written = [] {
    files.write("config.json", "{}");
    files.write("a.safetensors", fuzz::safetensors_of("a", 2, 3));
    files.write("b.safetensors", fuzz::safetensors_of("b", 4, 1));
    return true;
  }();
  if (!written) return 0;
  files.write("model.safetensors.index.json", fuzz::text_of(data, size));
  try {
    const io::HuggingFaceDirectory directory(files.path());
    for (const std::string& name : directory.names()) {
      if (directory.tensor(name).sum().item<double>() != 0) std::abort();
    }
  } catch (const io::Error& error) {
    fuzz::check_line(error.what());
  }
  return 0;
}
