#include "plimsoll/serve/http/metrics.h"

#include "plimsoll/format/format.h"
#include "plimsoll/io/error.h"

namespace plimsoll::serve {

namespace {

// Sums of what the watch has seen of all layers.
struct Seen {
  int64_t calls = 0, non_finite = 0;

  explicit Seen(const Engine& engine) {
    for (const watch::Record& record : engine.watched()) {
      calls += record.calls;
      non_finite += record.non_finite;
    }
  }
};

}  // namespace

std::string metrics_text(const Engine& engine) {
  const EngineStats stats = engine.stats();
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help, int64_t value) {
    text +=
        io::compose("# HELP plimsoll_{0} {1}\n# TYPE plimsoll_{0} {2}\nplimsoll_{0} {3}\n", name, help, type, value);
  };
  const SchedulerCounts& texts = stats.texts;
  add("requests_total", "counter", "Requests that the engine took.", stats.requests);
  add("requests_running", "gauge", "Requests that are read or written now.", texts.running);
  add("requests_waiting", "gauge", "Requests in the queue.", texts.waiting);
  add("requests_put_back_total", "counter", "Requests that went back to the queue for want of memory.", texts.put_back);
  add("steps_total", "counter", "Steps of the model.", stats.steps);
  add("written_tokens_total", "counter", "Tokens of replies.", stats.written_tokens);
  add("read_tokens_total", "counter", "Tokens of prompts that were read.", texts.read_tokens);
  add("shared_tokens_total", "counter", "Tokens of prompts that had been read for another request.",
      texts.shared_tokens);
  add("cache_bytes", "gauge", "Memory for keys and values.", texts.pages * stats.page_bytes);
  add("cache_used_bytes", "gauge", "Of it, what texts hold.", texts.used_pages * stats.page_bytes);
  add("cache_kept_bytes", "gauge", "Of that, what texts that ended have left.", texts.kept_pages * stats.page_bytes);
  if (!engine.watches()) return text;
  const Seen seen(engine);
  add("watched_results_total", "counter", "Results of layers that the watch has seen.", seen.calls);
  add("overflowed_total", "counter",
      "Elements of these that overflowed or were Inf or NaN; one a result where only its "
      "largest is known.",
      seen.non_finite);
  return text;
}

nlohmann::json headroom_json(const Engine& engine) {
  nlohmann::json layers = nlohmann::json::array();
  for (const watch::Record& record : engine.watched()) {
    layers.push_back({{"name", record.name},
                      {"format", format::info(record.format).name},
                      {"headroom_bits", record.headroom_bits},
                      {"non_finite", record.non_finite}});
  }
  return {{"watch", engine.watches()}, {"layers", std::move(layers)}};
}

}  // namespace plimsoll::serve
