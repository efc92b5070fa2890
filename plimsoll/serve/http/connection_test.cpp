#include "plimsoll/serve/http/connection.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace plimsoll::serve {
namespace {

using std::chrono::milliseconds;

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0); }
  ~ConnectionTest() override { go_away(); }

  void go_away() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  void send_text(const std::string& text) {
    EXPECT_EQ(send(ends_[1], text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  static bool never() { return false; }

  int ends_[2] = {-1, -1};  // the server's, which the connection closes, and the client's
};

TEST_F(ConnectionTest, GivesWhatTheClientSends) {
  Connection connection(ends_[0], {});
  send_text("abc");
  ASSERT_TRUE(connection.wait_for_request(never));
  char data[8];
  EXPECT_EQ(connection.read(data, 2), 2);
  EXPECT_EQ(connection.read(data + 2, 6), 1);
  EXPECT_EQ(std::string(data, 3), "abc");
  EXPECT_EQ(connection.write("d", 1), 1);
  EXPECT_EQ(recv(ends_[1], data, 8, 0), 1);
}

// Each byte comes as soon as the one before it is read, so that a limit of the time between two would never cut it off.
TEST_F(ConnectionTest, ARequestThatDripsIsCutOffWhenItsTimeIsOver) {
  constexpr milliseconds kTime(100);
  Connection connection(ends_[0], {.request = kTime});
  const auto start = std::chrono::steady_clock::now();
  send_text("a");
  EXPECT_TRUE(connection.wait_for_request(never));
  for (char byte = 0; connection.read(&byte, 1) == 1; std::this_thread::sleep_for(milliseconds(1))) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
    send_text("a");
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, kTime);
  EXPECT_FALSE(connection.wait_for_request(never));
}

TEST_F(ConnectionTest, AHalfOfARequestIsNotWaitedForLongWhileOthersWait) {
  bool is_crowded = false;
  Connection connection(ends_[0], {.request = std::chrono::hours(1), .crowded = milliseconds(1)},
                        {.crowded = [&] { return is_crowded; }});
  send_text("a");
  ASSERT_TRUE(connection.wait_for_request(never));
  char byte = 0;
  EXPECT_EQ(connection.read(&byte, 1), 1);
  std::this_thread::sleep_for(milliseconds(2));
  send_text("b");
  EXPECT_EQ(connection.read(&byte, 1), 1) << "nobody waits";
  is_crowded = true;
  EXPECT_EQ(connection.read(&byte, 1), -1);
  EXPECT_FALSE(connection.wait_for_request(never));
}

TEST_F(ConnectionTest, AHalfOfARequestIsNotWaitedForWhenTheServerIsCut) {
  std::atomic<bool> is_cut = false;
  Connection connection(ends_[0], {.request = std::chrono::minutes(1)}, {.cut = [&] { return is_cut.load(); }});
  const auto start = std::chrono::steady_clock::now();
  send_text("a");
  ASSERT_TRUE(connection.wait_for_request(never));
  char byte = 0;
  EXPECT_EQ(connection.read(&byte, 1), 1);
  std::thread server([&] {
    std::this_thread::sleep_for(milliseconds(10));
    is_cut = true;
  });
  EXPECT_EQ(connection.read(&byte, 1), -1);
  server.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_FALSE(connection.wait_for_request(never));
}

TEST_F(ConnectionTest, ARequestIsCutOffAtItsLargestSize) {
  Connection connection(ends_[0], {.bytes = 5});
  send_text("abcdefgh");
  ASSERT_TRUE(connection.wait_for_request(never));
  char data[8];
  EXPECT_EQ(connection.read(data, 3), 3);
  EXPECT_EQ(connection.read(data, 8), 2);
  EXPECT_EQ(connection.read(data, 8), -1);
  EXPECT_FALSE(connection.wait_for_request(never)) << "what follows is no request";
}

TEST_F(ConnectionTest, LinesAreCutOffBeforeABodyIs) {
  Connection connection(ends_[0], {.bytes = 100, .lines = 3});
  send_text("ab\ncdefgh");
  ASSERT_TRUE(connection.wait_for_request(never));
  char data[8];
  for (int i = 0; i < 3; ++i) EXPECT_EQ(connection.read(data, 1), 1);
  EXPECT_EQ(connection.read(data, 4), 4) << "of a body";
  EXPECT_EQ(connection.taken(), 7U);
  EXPECT_EQ(connection.read(data, 1), -1);
  EXPECT_FALSE(connection.wait_for_request(never));
}

TEST_F(ConnectionTest, TellsALineThatEndsWithLfAlone) {
  Connection connection(ends_[0], {});
  for (const auto& [text, is_bare] : {std::pair("a\r\n", false), std::pair("a\n", true), std::pair("\r\n", false)}) {
    send_text(text);
    ASSERT_TRUE(connection.wait_for_request(never));
    for (char byte = 0; byte != '\n';) ASSERT_EQ(connection.read(&byte, 1), 1);
    EXPECT_EQ(connection.has_bare_line(), is_bare);
  }
}

TEST_F(ConnectionTest, EachRequestHasItsOwnLimits) {
  Connection connection(ends_[0], {.bytes = 5});
  for (int i = 0; i < 3; ++i) {
    send_text("abcde");
    ASSERT_TRUE(connection.wait_for_request(never));
    char data[8];
    EXPECT_EQ(connection.read(data, 8), 5);
  }
}

TEST_F(ConnectionTest, ARequestThatDoesNotComeIsNotWaitedForBeyondTheIdleTimeOrTheServersEnd) {
  Connection connection(ends_[0], {.idle = milliseconds(1)});
  EXPECT_FALSE(connection.wait_for_request(never));
  Connection patient(dup(ends_[0]), {.idle = std::chrono::hours(1)});
  EXPECT_FALSE(patient.wait_for_request([] { return true; }));
}

TEST_F(ConnectionTest, TellsAClientThatHasGoneFromOneThatSendsNothingMore) {
  Connection connection(ends_[0], {});
  EXPECT_FALSE(connection.is_half_closed());
  send_text("a");
  ASSERT_TRUE(connection.wait_for_request(never));
  char byte = 0;
  EXPECT_EQ(connection.read(&byte, 1), 1);
  EXPECT_FALSE(connection.is_half_closed() || connection.is_gone());
  send_text("b");
  shutdown(ends_[1], SHUT_WR);
  EXPECT_TRUE(connection.is_half_closed()) << "behind bytes that are not read";
  EXPECT_FALSE(connection.is_gone());
  EXPECT_TRUE(connection.is_writable());
  EXPECT_EQ(connection.write("c", 1), 1);
  EXPECT_TRUE(connection.wait_for_request(never));
  EXPECT_EQ(connection.read(&byte, 1), 1);
  go_away();
  EXPECT_TRUE(connection.is_gone());
  EXPECT_FALSE(connection.is_writable());
  EXPECT_FALSE(connection.wait_for_request(never));
}

// Between machines, and within one, a client that closes its socket looks like one that sends nothing more until it is sent something.
TEST(Connection, AClientBehindTcpThatHasGoneShowsItWhenItIsSentSomething) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), size), 0);
  Connection connection(accept(listener, nullptr, nullptr), {});
  shutdown(client, SHUT_WR);
  while (!connection.is_half_closed()) std::this_thread::yield();
  EXPECT_EQ(connection.write("a", 1), 1);
  char byte = 0;
  EXPECT_EQ(recv(client, &byte, 1, 0), 1) << "it waits for its answer";
  EXPECT_FALSE(connection.is_gone());
  close(client);
  EXPECT_EQ(connection.write("a", 1), 1) << "and nobody reads it";
  while (!connection.is_gone()) std::this_thread::yield();
  close(listener);
}

TEST_F(ConnectionTest, AClientThatTakesNothingIsNotWaitedForBeyondItsTime) {
  Connection connection(ends_[0], {.write = milliseconds(20)});
  const std::string block(1 << 16, 'a');
  for (int i = 0; i < 1000; ++i) {
    const ssize_t sent = send(ends_[0], block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) break;  // the buffers are full
  }
  EXPECT_EQ(connection.write(block.data(), block.size()), -1);
}

}  // namespace
}  // namespace plimsoll::serve
