// The HTTP server: OpenAI's API, a page to chat on, health and metrics.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/serve/engine.h"
#include "plimsoll/serve/http/completion_request.h"

namespace plimsoll::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                                   // 0: one that is free
  std::string api_key = {};                          // empty: none is asked for
  int64_t connections = 128;                         // that are served at once; more of them wait
  int64_t most_body_bytes = 4 << 20;                 // of a request
  std::chrono::duration<double> request_timeout{0};  // from a request's last byte to its reply's; 0: any time
  // Hears of each request when it has been answered, from any thread: {"time", "seconds", "method", "path", "status"}; "error" where
  // there was one; "model", "prompt_tokens", "completion_tokens" and "finish_reasons" of a completion. time: of the request's first
  // byte, in UTC. Texts are UTF-8.
  std::function<void(const nlohmann::json&)> log = {};
};

// Throws app::Error if nothing can listen there now, which is said before a model is read.
void expect_free_address(const ServerOptions& options);

class Server {
 public:
  // The engine has to outlive the server. Throws app::Error if it cannot listen there.
  Server(Engine& engine, ServedModel served, ServerOptions options);
  // As stop(), without patience.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  // Takes no more requests, waits for those under way for so long, or until hurries() is true, and then ends their replies.
  void stop(std::chrono::milliseconds patience, const std::function<bool()>& hurries = {});

 private:
  class Http;

  std::unique_ptr<Http> http_;
};

}  // namespace plimsoll::serve
