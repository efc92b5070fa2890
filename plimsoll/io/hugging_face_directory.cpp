#include "plimsoll/io/hugging_face_directory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"

namespace plimsoll::io {
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

constexpr std::ptrdiff_t kShownNames = 5;  // of a list, which has hundreds where a file is another model's

// "a, b, c, d, e and 7 more".
std::string list_of(const std::vector<std::string>& names) {
  const auto shown = std::min(kShownNames, std::ssize(names));
  const auto more = std::ssize(names) - shown;
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + shown, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

// Adds "what: a, b, c" to a line.
void append_list(std::string& line, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  if (!line.empty()) line += "; ";
  line += fmt::format("{}: {}", what, list_of(names));
}

// {tensor: file} of an index.
std::map<std::string, std::string> weight_map(const std::filesystem::path& path) {
  const nlohmann::json index = read_json(path);
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || found == index.end() || !found->is_object()) {
    fail("{}: expected an object with a weight_map {{tensor: file}}", path.native());
  }
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string()) fail("{}: tensor '{}': expected a file's name, got {}", path.native(), tensor, file.dump());
    const auto name = file.get<std::string>();
    if (name.empty() || name == ".." || name == "." || name.find('/') != name.npos || name.find('\0') != name.npos) {
      fail("{}: tensor '{}': expected a file beside the index, got {}", path.native(), tensor, file.dump());
    }
    map.emplace(tensor, name);
  }
  return map;
}

}  // namespace

HuggingFaceDirectory::HuggingFaceDirectory(std::filesystem::path path) : path_(std::move(path)) {
  with_our_errors([&] { open(); });
}

void HuggingFaceDirectory::open() {
  if (!std::filesystem::is_directory(path_)) fail("{}: expected a model's directory", path_.native());
  const std::filesystem::path config = path_ / "config.json";
  config_ = read_json(config);
  if (!config_.is_object()) fail("{}: expected a JSON object, got {}", config.native(), config_.type_name());
  if (std::filesystem::exists(path_ / kWeights)) {
    open_file();
  } else if (std::filesystem::exists(path_ / kIndex)) {
    open_shards();
  } else {
    fail("{}: expected {} or {}, got neither", path_.native(), kWeights, kIndex);
  }
}

void HuggingFaceDirectory::open_file() {
  const SafetensorsFile& file = files_.emplace(kWeights, path_ / kWeights).first->second;
  for (const SafetensorsEntry& entry : file.entries()) entries_[entry.name] = {&file, &entry};
}

void HuggingFaceDirectory::open_shards() {
  const std::map<std::string, std::string> map = weight_map(path_ / kIndex);
  std::set<std::string> names, absent;
  for (const auto& [tensor, file] : map) names.insert(file);
  std::copy_if(names.begin(), names.end(), std::inserter(absent, absent.end()),
               [&](const std::string& name) { return !std::filesystem::exists(path_ / name); });
  if (!absent.empty()) fail("{}: expected the files {}, got none", (path_ / kIndex).native(), fmt::join(absent, ", "));
  std::vector<std::string> lost;
  for (const std::string& name : names) files_.emplace(name, path_ / name);
  for (const auto& [tensor, name] : map) {
    const SafetensorsFile& file = files_.at(name);
    const auto& entries = file.entries();
    const auto entry =
        std::find_if(entries.begin(), entries.end(), [&tensor = tensor](const auto& e) { return e.name == tensor; });
    if (entry == entries.end()) {
      lost.push_back(fmt::format("{} in {}", tensor, name));
    } else {
      entries_[tensor] = {&file, &*entry};
    }
  }
  if (!lost.empty()) fail("{}: expected the tensors {}, got none", (path_ / kIndex).native(), list_of(lost));
}

const HuggingFaceDirectory::Entry& HuggingFaceDirectory::find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail("{}: expected a tensor '{}'", path_.native(), name);
  return found->second;
}

at::Tensor HuggingFaceDirectory::tensor(const std::string& name) const {
  const Entry& found = find(name);
  return found.file->tensor(*found.entry);
}

std::filesystem::path HuggingFaceDirectory::file_of(const std::string& name) const {
  const SafetensorsFile* file = find(name).file;
  const auto found = std::ranges::find_if(files_, [&](const auto& each) { return &each.second == file; });
  return path_ / found->first;
}

std::function<void()> HuggingFaceDirectory::releaser(const std::string& name) const {
  const Entry& found = find(name);
  return found.file->releaser(*found.entry);
}

std::vector<std::string> HuggingFaceDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

void HuggingFaceDirectory::check_tensors(const Shapes& expected,
                                         const std::function<bool(const std::string&)>& is_of_model) const {
  std::vector<std::string> missing, misshapen, unknown;
  for (const auto& [name, shape] : expected) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      missing.push_back(name);
    } else if (found->second.entry->shape != shape) {
      misshapen.push_back(fmt::format("{} {} instead of {}", name, found->second.entry->shape, shape));
    }
  }
  for (const auto& [name, entry] : entries_) {
    if (is_of_model(name) && !expected.contains(name)) unknown.push_back(name);
  }
  std::string line;
  append_list(line, "missing", missing);
  append_list(line, "of another shape", misshapen);
  append_list(line, "unknown", unknown);
  if (!line.empty()) fail("{}: expected the tensors that config.json describes; {}", path_.native(), line);
}

}  // namespace plimsoll::io
