#include "plimsoll/io/checkpoint.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/sha256.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kState = "state.json";

bool is_step_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const auto is_digit = [](unsigned char letter) { return std::isdigit(letter) != 0; };
  return !name.empty() && name.size() <= 18 && std::all_of(name.begin(), name.end(), is_digit);
}

int64_t step_of(const fs::path& directory) { return std::stoll(directory.filename().native().substr(kPrefix.size())); }

json describe(const fs::path& file) { return {{"bytes", fs::file_size(file)}, {"sha256", sha256_of_file(file)}}; }

void write_contents(const fs::path& directory, const Checkpoint& checkpoint) {
  json files = json::object();
  for (const auto& [section, tensors] : checkpoint.sections) {
    const std::string name = section + std::string(kSuffix);
    save_safetensors(directory / name, tensors);
    files[name] = describe(directory / name);
  }
  write_file(directory / kState, checkpoint.state.dump(2) + "\n");
  files[kState] = describe(directory / kState);
  const json manifest = {{"step", checkpoint.step}, {"files", files}};
  write_file(directory / kManifest, manifest.dump(2) + "\n");
}

// Errors of the standard library's file system functions, as ours.
template <class Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const fs::filesystem_error& error) {
    fail("{}: {}", error.path1().native(), error.code().message());
  }
}

void check_file(const fs::path& file, const json& expected) {
  if (!fs::exists(file)) fail("{}: expected a file of the checkpoint, got none", file.native());
  const uint64_t bytes = fs::file_size(file), expected_bytes = expected.at("bytes").get<uint64_t>();
  if (bytes != expected_bytes) fail("{}: expected {} bytes, got {} (truncated?)", file.native(), expected_bytes, bytes);
  if (sha256_of_file(file) != expected.at("sha256").get_ref<const std::string&>()) {
    fail("{}: expected the SHA-256 that its manifest.json gives, got another (altered file)", file.native());
  }
}

Checkpoint read_contents(const fs::path& directory) {
  const fs::path manifest_file = directory / kManifest;
  const json manifest = read_json(manifest_file);
  Checkpoint checkpoint;
  try {
    checkpoint.step = manifest.at("step").get<int64_t>();
    for (const auto& [name, expected] : manifest.at("files").items()) {
      if (fs::path(name).filename() != name)
        fail("{}: expected plain file names, got '{}'", manifest_file.native(), name);
      check_file(directory / name, expected);
      if (name.ends_with(kSuffix)) {
        const std::string section = name.substr(0, name.size() - kSuffix.size());
        checkpoint.sections[section] = SafetensorsFile(directory / name).tensors();
      }
    }
  } catch (const json::exception&) {
    fail("{}: expected a checkpoint's manifest {{\"step\", \"files\": {{name: {{\"bytes\", \"sha256\"}}}}}}",
         manifest_file.native());
  }
  checkpoint.state = read_json(directory / kState);
  return checkpoint;
}

}  // namespace

fs::path save_checkpoint(const fs::path& run, const Checkpoint& checkpoint) {
  return translated([&] {
    const fs::path final_name = run / compose("{}{:08}", kPrefix, checkpoint.step);
    const fs::path partial = final_name.native() + ".partial", replaced = final_name.native() + ".replaced";
    fs::create_directories(run);
    fs::remove_all(partial);
    fs::remove_all(replaced);
    fs::create_directory(partial);
    try {
      write_contents(partial, checkpoint);
      if (fs::exists(final_name)) rename_durably(final_name, replaced);
      rename_durably(partial, final_name);
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(partial, ignored);
      throw;
    }
    fs::remove_all(replaced);
    return final_name;
  });
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  return translated([&] {
    std::vector<fs::path> found;
    if (!fs::exists(run)) return found;
    for (const auto& entry : fs::directory_iterator(run)) {
      if (entry.is_directory() && is_step_name(entry.path().filename().native())) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return step_of(a) < step_of(b); });
    return found;
  });
}

Checkpoint load_checkpoint(const fs::path& directory) {
  return translated([&] { return read_contents(directory); });
}

std::optional<LatestCheckpoint> load_latest_checkpoint(const fs::path& run) {
  const std::vector<fs::path> directories = list_checkpoints(run);
  std::vector<std::string> refused;
  for (auto directory = directories.rbegin(); directory != directories.rend(); ++directory) {
    try {
      return LatestCheckpoint{load_checkpoint(*directory), *directory, refused};
    } catch (const Error& error) {
      refused.emplace_back(error.what());
    }
  }
  if (!refused.empty()) throw Error(refused.front());
  return std::nullopt;
}

void remove_old_checkpoints(const fs::path& run, size_t keep) {
  translated([&] {
    std::vector<fs::path> directories = list_checkpoints(run);
    for (size_t i = 0; i + keep < directories.size(); ++i) {
      // Renamed first: a removal that is cut short leaves nothing that looks like a checkpoint.
      const fs::path removed = directories[i].native() + ".removed";
      fs::rename(directories[i], removed);
      fs::remove_all(removed);
    }
  });
}

}  // namespace plimsoll::io
