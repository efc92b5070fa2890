#include "plimsoll/app/text/stop_texts.h"

#include <algorithm>
#include <utility>

namespace plimsoll::app {

std::string StopTexts::add(std::string_view piece) {
  if (reached_) return "";
  held_ += piece;
  size_t end = held_.npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != held_.npos) {
    reached_ = true;
    held_.resize(end);
    return std::exchange(held_, "");
  }
  size_t kept = 0;  // bytes at the end with which a stop begins
  for (const std::string& stop : stops_) {
    for (size_t bytes = std::min(stop.size() - 1, held_.size()); bytes > kept; --bytes) {
      if (held_.ends_with(std::string_view(stop).substr(0, bytes))) kept = bytes;
    }
  }
  const std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopTexts::finish() { return std::exchange(held_, ""); }

}  // namespace plimsoll::app
