#include "files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace plimsoll::fuzz {

Files::Files() : path_(std::filesystem::temp_directory_path() / fmt::format("plimsoll-fuzz-{}", ::getpid())) {
  std::filesystem::create_directories(path_);
}

Files::~Files() { std::filesystem::remove_all(path_); }

std::string safetensors_of(const std::string& name, int rows, int columns) {
  const int bytes = 4 * rows * columns;
  const std::string header =
      fmt::format(R"({{"{}":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}})", name, rows, columns, bytes);
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(static_cast<size_t>(bytes), '\0');
}

void check_line(std::string_view what) {
  if (what.empty() || what.find('\n') != what.npos) std::abort();
}

}  // namespace plimsoll::fuzz
