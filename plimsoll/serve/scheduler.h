// The choice of the texts that take the next step, and of how many tokens each: those that write take one, and texts that
// are still to be read share the rest. Keys and values are counted in pages. When none is free, texts that ended are forgotten, the
// one that was used longest ago first; then the newest text goes back to the queue, and is read again later.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "plimsoll/models/token_cache.h"
#include "plimsoll/serve/reply.h"

namespace plimsoll::serve {

inline constexpr int64_t kPageTokens = 32;  // positions of a page of keys and values, of all layers

constexpr int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

struct SchedulerOptions {
  int64_t max_batch = 64;  // texts that are written at once
  int64_t pages = 0;       // of keys and values of all texts
  nn::CacheFormat cache = nn::CacheFormat::kAsGiven;
  size_t layers = 0;
};

// A request under way: its text so far, and what the model has read of it.
struct ServedText {
  Request request;
  std::shared_ptr<Reply> reply;
  std::vector<int64_t> text;  // the prompt, then the new tokens
  models::TokenCache cache;
  int64_t pages = 0;  // that the cache has

  int64_t new_tokens() const { return static_cast<int64_t>(text.size() - request.prompt.size()); }
  int64_t unread() const { return static_cast<int64_t>(text.size()) - cache.length(); }
};

struct StepPart {
  ServedText* text;
  int64_t tokens;  // to be read: the first that have not been
};

struct SchedulerCounts {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, used_pages = 0, kept_pages = 0;  // kept: of the used ones, those of texts that ended
  int64_t put_back = 0;                               // since the start
  int64_t read_tokens = 0, shared_tokens = 0;         // of prompts: read, and taken from texts that begin alike
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  void add(Request request, std::shared_ptr<Reply> reply);
  // The parts of the next step, with room for their tokens. Cancelled requests have gone; empty: nothing is to be done.
  std::vector<StepPart> plan();
  // The text has ended: its reply is the caller's to finish, its keys and values are kept for texts that begin alike.
  void end(ServedText& text);
  // Ends every reply, with this error, and forgets all texts.
  void fail(const std::string& error);

  SchedulerCounts counts() const;

 private:
  // The tokens, keys and values that a text has left when it ended.
  struct Kept {
    std::vector<int64_t> text;  // as much as has been read
    models::TokenCache cache;
    int64_t pages;
  };

  models::TokenCache empty_cache() const { return {static_cast<int64_t>(options_.layers), {.format = options_.cache}}; }
  int64_t free_pages() const { return options_.pages - used_; }
  void drop_cancelled();
  bool make_free(int64_t pages);  // by forgetting kept texts
  bool grow(ServedText& text);    // room for another token
  void put_back_newest();
  void make_room_for_writers();
  bool admit();  // the first that waits, if it may run
  void release(ServedText& text);

  // Tokens that a text has in common with one that is being served or kept, if they are enough to be shared.
  struct Prefix {
    int64_t tokens = 0;                         // that have been read
    const models::TokenCache* cache = nullptr;  // none: nothing is shared
    std::list<Kept>::iterator kept;             // or end()
    bool comes = false;                         // more of them are being read
  };
  Prefix longest_prefix(const std::vector<int64_t>& text);
  void begin_with(ServedText& text, const Prefix& prefix);

  const SchedulerOptions options_;
  std::deque<ServedText> waiting_;
  std::list<ServedText> running_;  // oldest first
  std::list<Kept> kept_;           // used longest ago first
  int64_t used_ = 0;               // pages
  int64_t put_back_ = 0, read_tokens_ = 0, shared_tokens_ = 0;
};

}  // namespace plimsoll::serve
