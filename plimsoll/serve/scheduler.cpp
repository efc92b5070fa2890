#include "plimsoll/serve/scheduler.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <span>
#include <utility>

namespace plimsoll::serve {
namespace {

using models::kPageTokens;
using models::pages_of;
using models::TextEnd;

// Rows of a step in which texts write: few enough that reading a prompt delays them little. Without them a prompt is read
// in larger pieces, which products do faster.
constexpr int64_t kMixedRows = 64, kFewestPromptRows = 16, kPromptRows = 512;

// Tokens that name a page of the text. The first of an encoder's pages has the whole prompt, on which all of the
// encoder's keys depend, and its others have none.
std::span<const int64_t> page_name(const ServedText& text, int64_t page) {
  const std::span<const int64_t> all = text.text;
  if (page >= pages_of(text.encoder_tokens)) return all.subspan(static_cast<size_t>(page * kPageTokens), kPageTokens);
  return all.first(page == 0 ? static_cast<size_t>(text.encoder_tokens) : 0);
}

}  // namespace

void Scheduler::add(Request request, std::shared_ptr<Reply> reply, ServedAdapter adapter) {
  std::vector<int64_t> text = request.prompt;
  ServedText added{std::move(request), std::move(reply), std::move(text), empty_text_, adapter};
  if (added.request.format != nullptr) added.json = added.request.format->start();
  if (options_.decoder_start) {
    added.encoder_tokens = std::ssize(added.text);
    added.text.resize(static_cast<size_t>(added.encoder_places()));
    added.text.push_back(*options_.decoder_start);
  }
  waiting_.push_back(std::move(added));
}

void Scheduler::release(ServedText& text) {
  // The first page last: the others are of no use without it.
  for (; !text.pages.empty(); text.pages.pop_back()) pool_.give_back(text.pages.back());
  text.named = 0;
  text.prefix = text.start();
  text.cache = empty_text_;
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

std::vector<PagePool::Named> Scheduler::find_pages(const ServedText& text) const {
  std::vector<PagePool::Named> found;
  int64_t prefix = text.start();
  // Without the last token, whose logits are wanted.
  for (int64_t i = 0; (i + 1) * kPageTokens < std::ssize(text.text); ++i) {
    const std::optional<PagePool::Named> page = pool_.find(prefix, page_name(text, i));
    if (!page) break;
    found.push_back(*page);
    prefix = page->prefix;
  }
  return found;
}

void Scheduler::name_full_pages(ServedText& text) {
  try {
    for (; (text.named + 1) * kPageTokens <= text.cache.length(); ++text.named) {
      text.prefix = pool_.name(text.pages[static_cast<size_t>(text.named)], text.prefix, page_name(text, text.named));
    }
  } catch (const std::bad_alloc&) {  // nobody finds them until there is memory
  }
}

void Scheduler::give_pages(ServedText& text, int64_t count) {
  text.pages.reserve(static_cast<size_t>(count));  // before one is taken
  while (std::ssize(text.pages) < count) text.pages.push_back(pool_.take());
  text.cache.set_pages(text.pages);
}

bool Scheduler::grow(ServedText& text) {
  const int64_t count = pages_of(text.cache.length() + 1), wanted = count - std::ssize(text.pages);
  if (wanted > pool_.free()) return false;
  if (text.cache.capacity() < count * kPageTokens) give_pages(text, count);
  return true;
}

void Scheduler::put_back_newest() {
  waiting_.splice(waiting_.begin(), running_, std::prev(running_.end()));
  release(waiting_.front());
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

bool Scheduler::is_being_read(const ServedText& text, int64_t pages) const {
  return std::ranges::any_of(running_, [&](const ServedText& other) {
    if (other.adapter.number != text.adapter.number) return false;
    if (text.encoder_tokens > 0 && other.request.prompt != text.request.prompt) return false;
    const auto tokens = std::span(text.text).first(text.text.size() - 1);
    const auto in_common = std::ranges::mismatch(tokens, other.text).in1 - tokens.begin();
    return in_common / kPageTokens > pages && other.cache.length() / kPageTokens <= pages;
  });
}

bool Scheduler::admit() {
  if (waiting_.empty() || std::ssize(running_) >= most_running_) return false;
  ServedText& text = waiting_.front();
  const std::vector<PagePool::Named> found = find_pages(text);
  if (is_being_read(text, std::ssize(found))) return false;
  text.pages.reserve(found.size());  // before one is taken
  for (const auto& [page, prefix] : found) {
    pool_.take(page);
    text.pages.push_back(page);
    text.prefix = prefix;
  }
  const int64_t pages = pages_of(std::ssize(text.text) + 1), spare = std::ssize(running_);  // each may need one soon
  if (pool_.free() < pages - std::ssize(found) + spare) {
    release(text);
    return false;
  }
  text.named = std::ssize(found);
  try {
    give_pages(text, pages);
  } catch (...) {
    release(text);
    throw;
  }
  // An encoder reads all of its prompt or nothing. Where only some of its pages were found, it writes the same again.
  const bool begins = text.named < pages_of(text.encoder_tokens);
  text.cache.keep(begins ? 0 : text.named * kPageTokens);
  const int64_t empty_places = text.encoder_places() - text.encoder_tokens;
  shared_tokens_ += text.cache.length() - (begins ? 0 : empty_places);
  read_tokens_ += text.unread() - (begins ? empty_places : 0);
  running_.splice(running_.end(), waiting_, waiting_.begin());
  return true;
}

std::vector<StepPart> Scheduler::plan() {
  for (ServedText& text : running_) name_full_pages(text);
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
    const int64_t encoder = text.cache.length() == 0 ? text.encoder_places() : 0;
    const int64_t tokens = encoder + std::min(text.unread() - encoder, rows);
    parts.push_back({&text, tokens});
    rows = writers == 0 ? 0 : std::max<int64_t>(rows - tokens, 0);  // alone, so that it goes by layers
  }
  return parts;
}

void Scheduler::end(ServedText& text) {
  name_full_pages(text);
  release(text);
  running_.remove_if([&](const ServedText& each) { return &each == &text; });
  most_running_ = std::min(most_running_ + 1, options_.max_batch);
}

void Scheduler::retreat(std::span<const StepPart> parts, const std::string& error) {
  if (parts.size() > 1) {
    put_back_newest();
    most_running_ = std::ssize(running_);
    return;
  }
  fail_alone(*parts.front().text, error);
}

void Scheduler::retreat(const std::string& error) {
  if (running_.size() > 1) put_back_newest();
  const int64_t most = std::max<int64_t>(std::ssize(running_), 1);
  const bool is_less = most < most_running_;
  most_running_ = most;
  if (is_less) return;
  if (running_.empty()) running_.splice(running_.end(), waiting_, waiting_.begin());
  fail_alone(running_.front(), error);
}

void Scheduler::fail_alone(ServedText& text, const std::string& error) {
  const std::shared_ptr<Reply> reply = text.reply;
  end(text);
  reply->finish(TextEnd::kInterrupted, error);
}

void Scheduler::fail(const std::string& error) {
  for (ServedText& text : waiting_) text.reply->finish(TextEnd::kInterrupted, error);
  for (ServedText& text : running_) text.reply->finish(TextEnd::kInterrupted, error);
  waiting_.clear();
  running_.clear();
  pool_ = PagePool(options_.pages);
  most_running_ = options_.max_batch;
}

SchedulerCounts Scheduler::counts() const {
  return {.running = std::ssize(running_),
          .waiting = std::ssize(waiting_),
          .pages = pool_.pages(),
          .used_pages = pool_.pages() - pool_.free() + pool_.kept(),
          .kept_pages = pool_.kept(),
          .put_back = put_back_,
          .read_tokens = read_tokens_,
          .shared_tokens = shared_tokens_};
}

}  // namespace plimsoll::serve
