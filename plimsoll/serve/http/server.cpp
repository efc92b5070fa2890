#include "plimsoll/serve/http/server.h"

#include <malloc.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/serve/http/access_key.h"
#include "plimsoll/serve/http/api_error.h"
#include "plimsoll/serve/http/completion.h"
#include "plimsoll/serve/http/connection.h"
#include "plimsoll/serve/http/metrics.h"
#include "plimsoll/serve/http/page.h"
#include "plimsoll/serve/http/request_framing.h"
#include "plimsoll/serve/http/workers.h"

namespace plimsoll::serve {
namespace {

using std::chrono::steady_clock;

constexpr size_t kLargeRequest = size_t{1} << 18;
// Time between two signs of life to a client that sends nothing more.
constexpr std::chrono::seconds kInterimPause(5);

// A request and its answer.
struct Exchange {
  Connection& connection;
  const std::chrono::system_clock::time_point time = std::chrono::system_clock::now();
  const steady_clock::time_point start = steady_clock::now();
  std::shared_ptr<const CompletionRecord> completion = {};
  std::string error = {};
  bool is_http_1_0 = false;
  bool is_read = false;  // its line and headers, without which nobody knows where it ends
  bool ends = false;     // the connection, for the request's body has not been read
};

// The exchange of the request that this thread answers: httplib's handlers do not get it.
thread_local Exchange* own_exchange = nullptr;

void answer(httplib::Response& response, const ApiError& error) {
  own_exchange->error = error.what();
  response.status = error.status;
  if (error.status == 429 || error.status == 503) response.set_header("Retry-After", "1");
  response.set_content(dump(to_json(error)), "application/json");
}

// As ISO 8601 has it, in UTC, with milliseconds.
std::string iso_time(std::chrono::system_clock::time_point time) {
  const auto in_ms = std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = in_ms / 1000;
  std::tm parts = {};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  const size_t size = std::strftime(text, sizeof(text), "%FT%T", &parts);
  return io::compose("{}.{:03}Z", std::string(text, size), in_ms % 1000);
}

nlohmann::json log_line(const Exchange& exchange, const httplib::Request& request, const httplib::Response& response) {
  const std::chrono::duration<double> seconds = steady_clock::now() - exchange.start;
  nlohmann::json line = {{"time", iso_time(exchange.time)},
                         {"seconds", seconds.count()},
                         {"method", request.method},
                         {"path", request.path},
                         {"status", response.status}};
  if (!exchange.error.empty()) line["error"] = exchange.error;
  if (exchange.completion != nullptr) {
    const CompletionRecord& record = *exchange.completion;
    line["model"] = record.model;
    line["prompt_tokens"] = record.prompt_tokens;
    line["completion_tokens"] = record.completion_tokens;
    line["finish_reasons"] = record.finish_reasons;
    if (!record.error.empty()) line["error"] = record.error;
  }
  return nlohmann::json::parse(dump(line));  // a path may be no UTF-8
}

void expect_host(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), "0", &hints, &found);
  if (error != 0) {
    app::fail("serve: expected a host, or an address, that this machine knows, got {}: {}", host,
              ::gai_strerror(error));
  }
  ::freeaddrinfo(found);
}

// The port that the server listens at.
int listen_at(httplib::Server& server, const ServerOptions& options) {
  // In place of httplib's own, which let two servers have one port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  expect_host(options.host);
  const int port = options.port == 0 ? server.bind_to_any_port(options.host) : options.port;
  if (port <= 0 || (options.port != 0 && !server.bind_to_port(options.host, port))) {
    app::fail("serve: expected an address that is free, got {}:{}", options.host, options.port);
  }
  return port;
}

}  // namespace

void expect_free_address(const ServerOptions& options) {
  // httplib closes the socket of a server that ran, and of no other.
  class Unused : public httplib::Server {
   public:
    ~Unused() override {
      if (svr_sock_ != INVALID_SOCKET) ::close(svr_sock_);
    }
  };
  Unused server;
  listen_at(server, options);
}

class Server::Http final : public httplib::Server {
 public:
  Http(Engine& engine, ServedModel served, ServerOptions options)
      : engine_(engine), served_(std::move(served)), options_(std::move(options)), key_(options_.api_key) {
    new_task_queue = [this] { return workers_.release(); };
    set_tcp_nodelay(true);  // each event of a stream is sent at once
    set_payload_max_length(static_cast<size_t>(options_.most_body_bytes));
    add_routes();
    port_ = listen_at(*this, options_);
    ::listen(svr_sock_, SOMAXCONN);  // httplib lets five clients wait for a thread
    try {
      workers_ = std::make_unique<Workers>(static_cast<size_t>(options_.connections));
      pool_ = workers_.get();
      listener_ = std::thread([this] { listen_after_bind(); });
    } catch (const std::system_error&) {
      app::fail("serve: expected memory for two threads that answer requests, got none from the system");
    }
    while (!is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  ~Http() override { end(std::chrono::milliseconds(0)); }

  void end(std::chrono::milliseconds patience, const std::function<bool()>& hurries = {}) {
    if (!listener_.joinable()) return;
    stopping_ = true;
    stop();
    const auto until = steady_clock::now() + patience;
    while (under_way_ > 0 && steady_clock::now() < until && !(hurries && hurries())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    cut_ = true;
    listener_.join();
  }

  int port() const { return port_; }

 private:
  // In place of httplib's own, whose streams give a client any time.
  bool process_and_close_socket(socket_t socket) override {
    // A body may come in chunks, each with its own length, which httplib does not count.
    Connection connection(socket, {.bytes = static_cast<size_t>(2 * options_.most_body_bytes)},
                          {.crowded = [this] { return pool_->is_crowded(); }, .cut = [this] { return cut_.load(); }});
    for (bool closed = false; !closed && connection.wait_for_request([this] { return stopping_.load(); });) {
      Exchange exchange{.connection = connection};
      own_exchange = &exchange;
      const bool goes_on = process_request(connection, stopping_, closed, forget_form);
      // A thread's heap would keep what reading a large request took.
      if (connection.taken() > kLargeRequest) ::malloc_trim(0);
      if (exchange.ends) connection.end_answer();
      if (!goes_on || exchange.ends) break;
    }
    own_exchange = nullptr;
    return true;
  }

  // Every body is JSON, though curl names a form where it is told nothing: httplib would read it as one, of 8 KiB at most.
  static void forget_form(httplib::Request& request) {
    if (request.get_header_value("Content-Type").starts_with("application/x-www-form-urlencoded")) {
      request.headers.erase("Content-Type");
    }
  }

  void add_routes() {
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      own_exchange->is_read = true;
      own_exchange->is_http_1_0 = request.version == "HTTP/1.0";
      const bool goes_on = has_end(request, response) && let_in(request, response) && has_method(request, response);
      // The body of this request would be taken for the next one on the connection.
      own_exchange->ends = !goes_on || (has_body(request) && !reads_body(request));
      if (own_exchange->ends) response.set_header("Connection", "close");
      return goes_on ? HandlerResponse::Unhandled : HandlerResponse::Handled;
    });
    set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!own_exchange->is_read) {  // what follows may be its body
        own_exchange->ends = true;
        response.set_header("Connection", "close");
      }
      if (!response.body.empty()) return;
      const std::string what = response.status == 404 ? "expected a path that is served, got " + request.path
                               : response.status == 413
                                   ? "expected a smaller body"
                                   : "expected an HTTP request that is whole, in time and not too large";
      answer(response, ApiError(response.status, what));
    });
    set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr thrown) {
      try {
        std::rethrow_exception(thrown);
      } catch (const ApiError& error) {
        answer(response, error);
      } catch (const std::bad_alloc&) {
        answer(response, ApiError(503, kNoMemory));
      } catch (const std::exception& error) {
        answer(response, ApiError(500, error.what()));
      }
    });
    set_logger([this](const httplib::Request& request, const httplib::Response& response) {
      if (options_.log) options_.log(log_line(*own_exchange, request, response));
    });
    Get("/", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(kPage, "text/html; charset=utf-8");
    });
    Get("/health", [this](const httplib::Request&, httplib::Response& response) {
      response.status = stopping_ ? 503 : 200;
      response.set_content(stopping_ ? R"({"status":"stopping"})" : R"({"status":"ok"})", "application/json");
    });
    Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(metrics_text(engine_), "text/plain; version=0.0.4");
    });
    Get("/headroom", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(dump(headroom_json(engine_)), "application/json");
    });
    Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      nlohmann::json models = nlohmann::json::array();
      for (const std::string& name : served_.names()) models.push_back(model_json(name));
      response.set_content(dump({{"object", "list"}, {"data", std::move(models)}}), "application/json");
    });
    Get("/v1/models/(.+)", [this](const httplib::Request& request, httplib::Response& response) {
      const std::vector<std::string> names = served_.names();
      const std::string name = request.matches[1];
      if (std::ranges::find(names, name) == names.end()) {
        throw ApiError(404, io::compose("expected a model that is served, got {}", name), "model", "model_not_found");
      }
      response.set_content(dump(model_json(name)), "application/json");
    });
    Post("/v1/chat/completions", [this](const httplib::Request& request, httplib::Response& response) {
      complete(read_chat_request(request.body, served_), response);
    });
    Post("/v1/completions", [this](const httplib::Request& request, httplib::Response& response) {
      complete(read_completion_request(request.body, served_), response);
    });
    Post("/completion", [this](const httplib::Request& request, httplib::Response& response) {
      complete(read_llama_cpp_request(request.body, served_), response);
    });
  }

  nlohmann::json model_json(const std::string& name) const {
    return {{"id", name},
            {"object", "model"},
            {"created", 0},
            {"owned_by", "plimsoll"},
            {"context", served_.context},
            {"chat", served_.chat_template != nullptr}};
  }

  // Whether it can be told where the request ends.
  static bool has_end(const httplib::Request& request, httplib::Response& response) {
    if (own_exchange->connection.has_bare_line()) {  // which httplib leaves out of the headers, and others may not
      answer(response, ApiError(400, "expected lines that end with CR LF, got one with LF alone"));
    } else if (const char* const reason = why_endless(request.headers)) {
      answer(response, ApiError(400, reason));
    } else if (reads_body(request) && !has_body(request)) {  // httplib would read until the client closes
      answer(response, ApiError(411, "expected a body with its Content-Length, got none"));
    } else {
      return true;
    }
    return false;
  }

  // Whether the path, if there is one, is served by this method.
  static bool has_method(const httplib::Request& request, httplib::Response& response) {
    constexpr std::array<std::string_view, 3> kPosts = {"/v1/chat/completions", "/v1/completions", "/completion"};
    constexpr std::array<std::string_view, 5> kGets = {"/", "/health", "/metrics", "/headroom", "/v1/models"};
    const bool is_get = request.method == "GET" || request.method == "HEAD";
    const char* allowed = nullptr;
    if (!is_get && std::ranges::find(kGets, request.path) != kGets.end()) allowed = "GET, HEAD";
    if (request.method != "POST" && std::ranges::find(kPosts, request.path) != kPosts.end()) allowed = "POST";
    if (allowed == nullptr) return true;
    answer(response, ApiError(405, io::compose("expected the method {}, got {}", allowed, request.method)));
    response.set_header("Allow", allowed);
    return false;
  }

  // The page and its health are for everybody.
  bool let_in(const httplib::Request& request, httplib::Response& response) const {
    if (request.path == "/" || request.path == "/health") return true;
    if (key_.lets_in(request.get_header_value("Authorization"))) return true;
    answer(response, ApiError(401, "expected the key of this server, got another or none", "", "invalid_api_key"));
    return false;
  }

  // Counts the requests that stop() waits for.
  class UnderWay {
   public:
    explicit UnderWay(std::atomic<int64_t>& count) : count_(count) { ++count_; }
    ~UnderWay() { --count_; }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    std::atomic<int64_t>& count_;
  };

  // send_interim() sends what is no part of the reply, and says whether it could.
  Gone gone_of(const Connection& connection, steady_clock::time_point start, std::function<bool()> send_interim) const {
    return [this, &connection, start, send = std::move(send_interim), next = start]() mutable {
      const auto timeout = options_.request_timeout;
      const auto now = steady_clock::now();
      if (timeout > timeout.zero() && now - start > timeout) {
        throw ApiError(408, io::compose("expected a reply within {} seconds, got none that is whole", timeout.count()),
                       "", "timeout");
      }
      if (cut_) throw ApiError(503, "the server stops: expected a reply that is whole before the drain ends, got none");
      if (connection.is_gone()) return true;
      if (now < next || !connection.is_half_closed()) return false;
      next = now + kInterimPause;  // it may have gone, and shows it then
      return !send();
    };
  }

  void complete(CompletionRequest request, httplib::Response& response) {
    const auto start = steady_clock::now();
    const auto under_way = std::make_shared<UnderWay>(under_way_);
    if (stopping_) throw ApiError(503, "the server stops");
    Connection& connection = own_exchange->connection;
    const bool streams = request.stream;
    const auto completion = std::make_shared<Completion>(engine_, served_, std::move(request));
    own_exchange->completion = completion->record();
    if (!streams) {
      // HTTP/1.0 knows no answer before the answer, so that a client of it is taken for gone.
      const bool has_interim = !own_exchange->is_http_1_0;
      const auto send_interim = [&connection, has_interim] {
        constexpr std::string_view kInterim = "HTTP/1.1 100 Continue\r\n\r\n";
        return has_interim && connection.write(kInterim.data(), kInterim.size()) > 0;
      };
      const Gone gone = gone_of(connection, start, send_interim);
      response.set_content(dump(completion->whole(gone)), "application/json");
      return;
    }
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider(
        "text/event-stream", [this, completion, under_way, start, &connection](size_t, httplib::DataSink& sink) {
          const auto send = [&](const std::string& event) { return sink.write(event.data(), event.size()); };
          completion->stream(send, gone_of(connection, start, [&] { return send(":\n\n"); }));  // a comment
          sink.done();
          return true;
        });
  }

  Engine& engine_;
  const ServedModel served_;
  const ServerOptions options_;
  const AccessKey key_;
  int port_ = 0;
  std::atomic<bool> stopping_ = false, cut_ = false;
  std::atomic<int64_t> under_way_ = 0;
  std::unique_ptr<Workers> workers_;  // until the listener takes them
  const Workers* pool_ = nullptr;     // these, which live as long as their tasks
  std::thread listener_;
};

Server::Server(Engine& engine, ServedModel served, ServerOptions options)
    : http_(std::make_unique<Http>(engine, std::move(served), std::move(options))) {}

Server::~Server() = default;

int Server::port() const { return http_->port(); }

void Server::stop(std::chrono::milliseconds patience, const std::function<bool()>& hurries) {
  http_->end(patience, hurries);
}

}  // namespace plimsoll::serve
