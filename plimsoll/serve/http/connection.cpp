#include "plimsoll/serve/http/connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace plimsoll::serve {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook(100);       // between two looks whether the server stops, or others wait
constexpr milliseconds kFarewell(1000);  // for what a client still sends

// The event and errors, as far as they come in time.
int16_t events_of(socket_t socket, int16_t event, milliseconds time) {
  pollfd entry = {.fd = socket, .events = event, .revents = 0};
  int found = 0;
  do {
    found = poll(&entry, 1, static_cast<int>(std::max<int64_t>(time.count(), 0)));
  } while (found < 0 && errno == EINTR);
  return found > 0 ? entry.revents : int16_t{0};
}

// Whether the event comes in time, or an error.
bool wait_for(socket_t socket, int16_t event, milliseconds time) { return events_of(socket, event, time) != 0; }

void name_of(const sockaddr_storage& address, socklen_t size, std::string& ip, int& port) {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  if (getnameinfo(any, size, host, sizeof(host), service, sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return;
  ip = host;
  port = std::stoi(service);
}

}  // namespace

Connection::~Connection() {
  shutdown(socket_, SHUT_RDWR);
  close(socket_);
}

void Connection::end_answer() {
  shutdown(socket_, SHUT_WR);
  const auto until = Clock::now() + kFarewell;
  char unread[1 << 14];
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    if (left.count() <= 0 || !wait_for(socket_, POLLIN, left)) return;
    if (recv(socket_, unread, sizeof(unread), MSG_DONTWAIT) <= 0) return;
  }
}

bool Connection::wait_for_request(const std::function<bool()>& stopping) {
  if (is_cut_) return false;
  const auto until = Clock::now() + limits_.idle;
  while (begin_ == end_ && !wait_for(socket_, POLLIN, std::min(kLook, limits_.idle))) {
    if (stopping() || Clock::now() >= until) return false;
  }
  start_ = Clock::now();
  left_ = limits_.bytes;
  lines_left_ = limits_.lines;
  has_bare_line_ = false;
  last_ = 0;
  char byte = 0;
  return begin_ < end_ || recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

bool Connection::is_half_closed() const { return (events_of(socket_, POLLRDHUP, milliseconds(0)) & POLLRDHUP) != 0; }

bool Connection::is_gone() const { return (events_of(socket_, 0, milliseconds(0)) & (POLLERR | POLLHUP)) != 0; }

bool Connection::is_readable() const {
  if (begin_ < end_) return true;
  for (;;) {
    if (signs_.cut && signs_.cut()) return false;
    const bool is_crowded = signs_.crowded && signs_.crowded();
    const auto left = start_ + (is_crowded ? limits_.crowded : limits_.request) - Clock::now();
    if (left <= left.zero()) return false;
    if (wait_for(socket_, POLLIN, std::min(kLook, std::chrono::ceil<milliseconds>(left)))) return true;
  }
}

bool Connection::is_writable() const { return wait_for(socket_, POLLOUT, limits_.write) && !is_gone(); }

ssize_t Connection::read(char* data, size_t size) {
  const bool is_line = size == 1;
  is_cut_ = is_cut_ || left_ == 0 || (is_line && lines_left_ == 0) || !is_readable();
  if (is_cut_) return -1;
  if (begin_ == end_) {
    const ssize_t found = recv(socket_, buffer_, sizeof(buffer_), 0);
    if (found <= 0) return found;
    begin_ = 0;
    end_ = static_cast<size_t>(found);
  }
  const size_t count = std::min({size, end_ - begin_, left_});
  left_ -= count;
  std::memcpy(data, buffer_ + begin_, count);
  if (is_line) {
    --lines_left_;
    has_bare_line_ = has_bare_line_ || (*data == '\n' && last_ != '\r');
    last_ = *data;
  }
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, size_t size) {
  if (!wait_for(socket_, POLLOUT, limits_.write)) return -1;
  return send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) name_of(address, size, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) name_of(address, size, ip, port);
}

}  // namespace plimsoll::serve
