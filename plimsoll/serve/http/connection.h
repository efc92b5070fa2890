// A client's connection: httplib's stream over a socket, with limits of what a request may take.
#pragma once

#include <httplib.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace plimsoll::serve {

struct ConnectionLimits {
  std::chrono::milliseconds request{30'000};  // from a request's first byte to its last
  std::chrono::milliseconds crowded{5'000};   // the same while other connections wait for a thread
  std::chrono::milliseconds idle{5'000};      // between two requests
  std::chrono::milliseconds write{10'000};    // that a client takes nothing
  size_t bytes = size_t{1} << 20;             // of a request, its headers and how a body is cut among them
  size_t lines = size_t{1} << 16;  // bytes of a request that are read one at a time: headers, sizes of chunks
};

// Questions to the server while a request is waited for; empty: never.
struct ConnectionSigns {
  std::function<bool()> crowded = {};  // whether others wait for a thread
  std::function<bool()> cut = {};      // whether the rest of no request is waited for any more
};

class Connection final : public httplib::Stream {
 public:
  // The socket is closed with it.
  Connection(socket_t socket, const ConnectionLimits& limits, ConnectionSigns signs = {})
      : socket_(socket), limits_(limits), signs_(std::move(signs)) {}
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Whether another request begins to come before the client closes, the idle time passes or stopping() is true. None does
  // after a request that was cut off at a limit.
  bool wait_for_request(const std::function<bool()>& stopping);
  // Ends the answer, and reads over what the client still sends, until it closes or a second has passed: a socket that is closed
  // with bytes unread takes back the answer.
  void end_answer();
  // Whether the client sends nothing any more: it has closed the connection, or its part of it and waits for the answer. Which of
  // both shows when it gets something.
  bool is_half_closed() const;
  // Whether nothing can be sent to the client any more.
  bool is_gone() const;
  // Whether a line of the request ends with LF that has no CR before it.
  bool has_bare_line() const { return has_bare_line_; }
  // Bytes of the request so far.
  size_t taken() const { return limits_.bytes - left_; }

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  const socket_t socket_;
  const ConnectionLimits limits_;
  const ConnectionSigns signs_;
  Clock::time_point start_ = {};  // of the request
  char buffer_[4096];             // httplib reads a line byte by byte
  size_t begin_ = 0, end_ = 0;
  size_t left_ = 0, lines_left_ = 0;  // bytes that the request may still have, and its lines
  bool is_cut_ = false, has_bare_line_ = false;
  char last_ = 0;  // byte of a line
};

}  // namespace plimsoll::serve
