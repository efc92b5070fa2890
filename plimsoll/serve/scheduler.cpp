#include "plimsoll/serve/scheduler.h"

#include <algorithm>
#include <utility>

namespace plimsoll::serve {
namespace {

using models::TextEnd;

// Rows of a step in which texts write: few enough that reading a prompt delays them little. Without them a prompt is read
// in larger pieces, which products do faster.
constexpr int64_t kMixedRows = 64, kFewestPromptRows = 16, kPromptRows = 512;

// Tokens in common from which on it is worth to share them.
constexpr int64_t kFewestShared = kPageTokens;

int64_t common(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

void Scheduler::add(Request request, std::shared_ptr<Reply> reply) {
  std::vector<int64_t> text = request.prompt;
  waiting_.push_back({std::move(request), std::move(reply), std::move(text), empty_cache()});
}

void Scheduler::release(ServedText& text) {
  used_ -= text.pages;
  text.pages = 0;
  text.cache = empty_cache();
}

void Scheduler::drop_cancelled() {
  std::erase_if(waiting_, [](ServedText& text) {
    const bool is_cancelled = text.reply->cancelled();  // read once: another thread may cancel meanwhile
    if (is_cancelled) text.reply->finish(TextEnd::kInterrupted);
    return is_cancelled;
  });
  for (auto text = running_.begin(); text != running_.end();) {
    ServedText& each = *text++;
    if (!each.reply->cancelled()) continue;
    each.reply->finish(TextEnd::kInterrupted);
    end(each);
  }
}

bool Scheduler::make_free(int64_t pages) {
  while (free_pages() < pages && !kept_.empty()) {
    used_ -= kept_.front().pages;
    kept_.pop_front();
  }
  return free_pages() >= pages;
}

bool Scheduler::grow(ServedText& text) {
  const int64_t wanted = pages_of(text.cache.length() + 1);
  if (wanted <= text.pages) return true;
  if (!make_free(wanted - text.pages)) return false;
  used_ += wanted - text.pages;
  text.pages = wanted;
  text.cache.reserve(wanted * kPageTokens);
  return true;
}

void Scheduler::put_back_newest() {
  release(running_.back());
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++put_back_;
}

void Scheduler::make_room_for_writers() {
  for (auto text = running_.begin(); text != running_.end(); ++text) {
    while (text->unread() == 1 && !grow(*text)) {
      const bool is_newest = &*text == &running_.back();
      put_back_newest();
      if (is_newest) return;
    }
  }
}

Scheduler::Prefix Scheduler::longest_prefix(const std::vector<int64_t>& text) {
  Prefix longest{.kept = kept_.end()};
  const auto most = static_cast<int64_t>(text.size()) - 1;  // the last token's logits are wanted
  int64_t comes = 0;
  for (const ServedText& other : running_) {
    const int64_t shared = std::min(common(text, other.text), most), read = std::min(shared, other.cache.length());
    comes = std::max(comes, shared);
    if (read > longest.tokens) longest = {.tokens = read, .cache = &other.cache, .kept = kept_.end()};
  }
  for (auto other = kept_.begin(); other != kept_.end(); ++other) {
    const int64_t shared = std::min(common(text, other->text), most);
    if (shared > longest.tokens) longest = {.tokens = shared, .cache = &other->cache, .kept = other};
  }
  if (longest.tokens < kFewestShared) longest = {.kept = kept_.end()};
  longest.comes = comes >= longest.tokens + kFewestShared;
  return longest;
}

void Scheduler::begin_with(ServedText& text, const Prefix& prefix) {
  const int64_t capacity = text.pages * kPageTokens;
  if (prefix.cache == nullptr) {
    text.cache.reserve(capacity);
    return;
  }
  shared_tokens_ += prefix.tokens;
  text.cache = prefix.cache->first(prefix.tokens, capacity);
  if (prefix.kept == kept_.end() || prefix.tokens < static_cast<int64_t>(prefix.kept->text.size())) return;
  used_ -= prefix.kept->pages;  // the new text has it all
  kept_.erase(prefix.kept);
}

bool Scheduler::admit() {
  if (waiting_.empty() || static_cast<int64_t>(running_.size()) >= options_.max_batch) return false;
  ServedText& text = waiting_.front();
  const int64_t pages = pages_of(static_cast<int64_t>(text.text.size()) + 1);
  // Each text that runs may need a page soon.
  const auto spare = static_cast<int64_t>(running_.size());
  Prefix prefix = longest_prefix(text.text);
  if (prefix.comes) return false;
  if (prefix.kept != kept_.end()) kept_.splice(kept_.end(), kept_, prefix.kept);  // forgotten last
  int64_t kept = 0;
  for (const Kept& each : kept_) kept += each.pages;
  if (free_pages() + kept < pages + spare) return false;
  if (prefix.kept != kept_.end() && free_pages() + kept - prefix.kept->pages < pages + spare) {
    // Not both: its pages become the text's own.
    text.cache = std::move(prefix.kept->cache);
    text.cache.keep(prefix.tokens);
    used_ -= prefix.kept->pages;
    kept_.erase(prefix.kept);
    make_free(pages + spare);
    used_ += text.pages = pages;
    const models::TokenCache whole = std::move(text.cache);
    begin_with(text, {.tokens = prefix.tokens, .cache = &whole, .kept = kept_.end()});
  } else {
    make_free(pages + spare);
    used_ += text.pages = pages;
    begin_with(text, prefix);
  }
  read_tokens_ += text.unread();
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

std::vector<StepPart> Scheduler::plan() {
  drop_cancelled();
  make_room_for_writers();
  while (admit()) {
  }
  std::vector<StepPart> parts;
  for (ServedText& text : running_) {
    if (text.unread() == 1) parts.push_back({&text, 1});
  }
  const auto writers = static_cast<int64_t>(parts.size());
  int64_t rows = writers == 0 ? kPromptRows : std::max(kFewestPromptRows, kMixedRows - writers);
  for (ServedText& text : running_) {
    if (text.unread() == 1 || rows == 0) continue;
    const int64_t tokens = std::min(text.unread(), rows);
    parts.push_back({&text, tokens});
    rows = writers == 0 ? 0 : rows - tokens;  // alone, so that it goes by layers
  }
  return parts;
}

void Scheduler::end(ServedText& text) {
  const int64_t read = text.cache.length();
  if (read >= kFewestShared) {
    text.text.resize(static_cast<size_t>(read));
    kept_.push_back({std::move(text.text), std::move(text.cache), text.pages});
  } else {
    release(text);
  }
  running_.remove_if([&](const ServedText& each) { return &each == &text; });
}

void Scheduler::fail(const std::string& error) {
  for (ServedText& text : waiting_) text.reply->finish(TextEnd::kInterrupted, error);
  for (ServedText& text : running_) text.reply->finish(TextEnd::kInterrupted, error);
  waiting_.clear();
  running_.clear();
  kept_.clear();
  used_ = 0;
}

SchedulerCounts Scheduler::counts() const {
  SchedulerCounts counts{.running = static_cast<int64_t>(running_.size()),
                         .waiting = static_cast<int64_t>(waiting_.size()),
                         .pages = options_.pages,
                         .used_pages = used_,
                         .put_back = put_back_,
                         .read_tokens = read_tokens_,
                         .shared_tokens = shared_tokens_};
  for (const Kept& each : kept_) counts.kept_pages += each.pages;
  return counts;
}

}  // namespace plimsoll::serve
