#include "plimsoll/serve/http/metrics.h"

#include "plimsoll/io/error.h"

namespace plimsoll::serve {

std::string metrics_text(const EngineStats& stats) {
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
  return text;
}

}  // namespace plimsoll::serve
