// The choice of the texts that take the next step, and of how many tokens each: those that write take one, and texts that
// are still to be read share the rest. Keys and values are in pages, and texts that begin alike have full ones in common.
// When none is free, or there was no memory for a step, the newest text goes back to the queue, and what has been forgotten
// of it is read again later.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plimsoll/models/paged_model.h"
#include "plimsoll/serve/page_pool.h"
#include "plimsoll/serve/reply.h"

namespace plimsoll::serve {

struct SchedulerOptions {
  int64_t max_batch = 64;  // texts that are written at once
  int64_t pages = 0;       // of the memory of all texts
  // models::PagedModel::decoder_start(). An encoder reads a prompt whole: its pages are those of texts with the same one.
  std::optional<int64_t> decoder_start = {};
};

// Adapters of a text's own.
struct ServedAdapter {
  const nn::LoraSet* adapters = nullptr;  // nullptr: nothing
  int64_t number = 0;                     // its own, from 1 on: texts of unlike adapters share no pages
};

// A request under way: its text so far, and what the model has read of it.
struct ServedText {
  Request request;
  std::shared_ptr<Reply> reply;
  std::vector<int64_t> text;  // the prompt, then the new tokens; with an encoder as models::PagedModel has it
  models::TokenCache cache;
  ServedAdapter adapter = {};
  std::vector<int32_t> pages = {};  // of the cache
  int64_t named = 0;                // pages that have a name
  int64_t prefix = start();         // PagePool::Named of the last of these
  JsonState json = {};              // of a request with a format
  int64_t encoder_tokens = 0;       // of the prompt, where an encoder reads it

  int64_t start() const { return -adapter.number; }  // PagePool::Named of no tokens
  int64_t encoder_places() const { return models::encoder_places(encoder_tokens); }
  // The tokens that the next one follows: the prompt and the new ones, or what a decoder reads.
  std::span<const int64_t> continued() const { return std::span(text).subspan(static_cast<size_t>(encoder_places())); }
  int64_t new_tokens() const { return std::ssize(continued()) - (encoder_tokens > 0 ? 1 : std::ssize(request.prompt)); }
  int64_t unread() const { return static_cast<int64_t>(text.size()) - cache.length(); }
};

struct StepPart {
  ServedText* text;
  int64_t tokens;  // to be read: the first that have not been
};

struct SchedulerCounts {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, used_pages = 0, kept_pages = 0;  // kept: of the used ones, those that no text has any more
  int64_t put_back = 0;                               // since the start
  int64_t read_tokens = 0, shared_tokens = 0;         // of prompts: read, and taken from texts that begin alike
};

class Scheduler {
 public:
  // memory: of options.pages pages.
  Scheduler(const SchedulerOptions& options, const models::TokenPages& memory)
      : options_(options), empty_text_(memory.empty_text()), pool_(options.pages), most_running_(options.max_batch) {}

  // A text for which there is no memory, std::bad_alloc, is not there afterwards.
  void add(Request request, std::shared_ptr<Reply> reply, ServedAdapter adapter = {});
  // The parts of the next step, with room for their tokens. Cancelled requests have gone; empty: nothing is to be done.
  // std::bad_alloc, or another error of lacking memory, leaves the texts so that retreat() helps.
  std::vector<StepPart> plan();
  // There was no memory for a step of these parts, whose caches are as they were before it. The newest text goes back to
  // the queue, and no more than the others run; each end lets one more run. A text that was alone in the step ends, with this error.
  void retreat(std::span<const StepPart> parts, const std::string& error);
  // There was no memory for plan(). The newest text goes back, or the one that runs goes on alone; one that was alone ends.
  void retreat(const std::string& error);
  // The text has ended: its reply is the caller's to finish, its full pages are kept for texts that begin alike.
  void end(ServedText& text);
  // Ends every reply, with this error, and forgets all texts.
  void fail(const std::string& error);

  SchedulerCounts counts() const;

 private:
  void drop_cancelled();
  std::vector<PagePool::Named> find_pages(const ServedText& text) const;  // of what it begins with
  void name_full_pages(ServedText& text);                                 // those for whose names there is memory
  void give_pages(ServedText& text, int64_t count);                       // free ones, until it has so many
  bool grow(ServedText& text);                                            // room for another token
  void put_back_newest();
  void fail_alone(ServedText& text, const std::string& error);
  void make_room_for_writers();
  // Whether another text is to read what follows the first pages of this one.
  bool is_being_read(const ServedText& text, int64_t pages) const;
  bool admit();  // the first that waits, if it may run
  void release(ServedText& text);

  const SchedulerOptions options_;
  const models::TokenCache empty_text_;
  PagePool pool_;
  int64_t most_running_;                     // fewer than max_batch after a step for which there was no memory
  std::list<ServedText> waiting_, running_;  // oldest first; texts go from list to list without new memory
  int64_t put_back_ = 0, read_tokens_ = 0, shared_tokens_ = 0;
};

}  // namespace plimsoll::serve
