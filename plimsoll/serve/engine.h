// Many requests to one model, whose steps they share: each step multiplies by a weight once for the rows of all. A reply
// has the bits that the request gets alone, by models::Decoding or `plimsoll generate`, or of a T5 by models::T5Decoding,
// whoever else is served. A step for which the system has no memory is taken again with fewer requests: only one that
// lacks it alone ends with that error.
//
//   const models::LoadedModel loaded = models::load("DIR");
//   serve::Engine engine(loaded.model, {.max_batch = 16});
//   const auto reply = engine.submit({.prompt = {1, 2, 3}, .max_new_tokens = 50});
//   while (const auto token = reply->next()) std::cout << token->token.id << '\n';
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plimsoll/models/paged_model.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/serve/reply.h"
#include "plimsoll/serve/scheduler.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::serve {

inline constexpr int64_t kLeastContext = 2;  // a token of a prompt, and one of its reply

struct EngineOptions {
  int64_t max_batch = 64;  // requests that are written at once
  // Tokens of a prompt and its reply, kLeastContext or more and no more than the model sees; 0: as many as it sees, 2048 of any number.
  int64_t max_context = 0;
  int64_t memory = 1 << 30;  // bytes of keys and values
  int64_t queue = 256;       // requests that wait
  nn::CacheFormat cache = nn::CacheFormat::kAsGiven;
  std::optional<recipe::Recipe> recipe = {};  // in force while the model computes
  watch::Mode watch = watch::Mode::kOff;  // of the results of layers; beside kOff, a step takes one text after another
  // Adapters that requests may ask for by name, which models::read_adapter() has read for this model.
  std::map<std::string, std::shared_ptr<const nn::LoraSet>> adapters = {};
};

struct EngineStats {
  SchedulerCounts texts = {};
  int64_t page_bytes = 0;
  int64_t steps = 0, written_tokens = 0, requests = 0;  // since the start
};

struct QueueFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Engine {
 public:
  // Converts the weights. The model, in eval mode, is the engine's alone while it lives. Throws c10::ValueError for
  // options that are out of range, such as a memory that a longest text does not fit into.
  Engine(std::shared_ptr<models::PagedModel> model, const EngineOptions& options);
  // Ends all replies as their cancel() does. In a forked process, which has no thread of the engine's, it never returns.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws c10::ValueError, which names what is wrong with the request, or QueueFull.
  std::shared_ptr<Reply> submit(Request request);

  EngineStats stats() const;
  // Records of the watch, a layer each, by name; none without a watch.
  std::vector<watch::Record> watched() const;
  bool watches() const { return options_.watch != watch::Mode::kOff; }
  int64_t context() const { return context_; }                            // tokens of a prompt and its reply
  int64_t places() const { return options_.max_batch + options_.queue; }  // requests that are served or wait
  int64_t vocabulary() const { return vocabulary_; }
  std::vector<std::string> adapters() const;  // names, sorted

 private:
  struct Choice;
  struct Writer;

  void check(const Request& request) const;
  ServedAdapter adapter_of(const Request& request) const;
  at::Tensor read(std::span<const models::TextTokens> texts);
  void run();  // on the engine's own thread
  // The parts of the next step: fewer where there is no memory for a plan of more.
  std::vector<StepPart> plan();
  // A step of the parts; where there is no memory for it, of fewer next time.
  void take(const std::vector<StepPart>& parts);
  std::vector<Writer> step(const std::vector<StepPart>& parts);
  void write(ServedText& text, Choice choice);
  // The end of a text with the token, its last; its JSON goes on by it.
  static std::optional<models::TextEnd> end_after(ServedText& text, const ReplyToken& token);

  const std::shared_ptr<models::PagedModel> model_;
  const EngineOptions options_;
  int64_t context_, vocabulary_ = 0;
  std::optional<Scheduler> scheduler_;  // of the engine's thread

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::pair<Request, std::shared_ptr<Reply>>> submitted_;
  EngineStats stats_;
  bool stops_ = false;
  std::optional<watch::Session> session_;  // in force on the engine's thread

  std::thread thread_;
};

}  // namespace plimsoll::serve
