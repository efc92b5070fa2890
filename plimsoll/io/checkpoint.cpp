#include "plimsoll/io/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "plimsoll/io/checkpoint_writer.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/output_lock.h"
#include "plimsoll/io/replace_directory.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

bool is_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return false;
  name.remove_prefix(kStepPrefix.size());
  const auto is_digit = [](unsigned char letter) { return std::isdigit(letter) != 0; };
  return !name.empty() && name.size() <= 18 && std::all_of(name.begin(), name.end(), is_digit);
}

// Whether a process that was killed while it saved or removed a checkpoint has left this directory.
bool is_left_over(const fs::path& directory) {
  const fs::path state = directory.extension();
  return is_step_name(directory.stem().native()) &&
         (state == ".partial" || state == ".replaced" || state == ".removed");
}

// A whole checkpoint whose writer was killed before another one had its name.
bool is_replaced_by_none(const fs::path& directory) {
  return is_left_over(directory) && directory.extension() == ".replaced" &&
         !fs::exists(directory.parent_path() / directory.stem());
}

int64_t step_of(const fs::path& directory) { return std::stoll(directory.stem().native().substr(kStepPrefix.size())); }

}  // namespace

fs::path save_checkpoint(const fs::path& run, const Checkpoint& checkpoint) {
  const CheckpointPlace place{.run = run, .step = checkpoint.step};
  PieceMap sections;
  for (const auto& [section, tensors] : checkpoint.sections) sections[section] = whole_pieces(tensors);
  const OutputLock lock = OutputLock::of_directory(run);
  begin_checkpoint(place);
  try {
    commit_checkpoint(place, write_pieces(place, sections, {}), checkpoint.state);
  } catch (...) {
    abandon_checkpoint(place);
    throw;
  }
  return place.final_name();
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  return with_our_errors([&] {
    std::vector<fs::path> found;
    if (!fs::is_directory(run)) return found;
    for (const auto& entry : fs::directory_iterator(run)) {
      const bool is_checkpoint = is_step_name(entry.path().filename().native()) || is_replaced_by_none(entry.path());
      if (is_checkpoint && entry.is_directory()) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return step_of(a) < step_of(b); });
    return found;
  });
}

Checkpoint load_checkpoint(const fs::path& directory) {
  const CheckpointReader reader(directory);
  reader.verify(reader.files());
  Checkpoint checkpoint{.step = reader.step(), .sections = {}, .state = reader.state()};
  for (const auto& [section, tensors] : reader.manifest().sections) {
    checkpoint.sections[section] = reader.read_section(section);
  }
  return checkpoint;
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
  if (!refused.empty()) fail("{}", fmt::join(refused, "; "));
  return std::nullopt;
}

void remove_left_overs(const fs::path& run) {
  with_our_errors([&] {
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(run)) {
      if (is_left_over(entry.path()) && !is_replaced_by_none(entry.path())) left.push_back(entry.path());
    }
    for (const fs::path& directory : left) fs::remove_all(directory);
  });
}

void remove_old_checkpoints(const fs::path& run, int64_t saved, size_t keep) {
  with_our_errors([&] {
    for (const fs::path& whole : list_checkpoints(run)) {
      if (is_left_over(whole)) restore_replaced(whole.parent_path() / whole.stem());
    }
    remove_left_overs(run);
    std::vector<fs::path> directories = list_checkpoints(run);
    std::erase_if(directories, [&](const fs::path& directory) { return step_of(directory) > saved; });
    for (size_t i = 0; i + keep < directories.size(); ++i) {
      // Renamed first: a removal that is cut short leaves nothing that looks like a checkpoint.
      const fs::path removed = directories[i].native() + ".removed";
      fs::rename(directories[i], removed);
      fs::remove_all(removed);
    }
  });
}

}  // namespace plimsoll::io
