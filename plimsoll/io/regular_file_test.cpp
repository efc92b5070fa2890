#include "plimsoll/io/regular_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <future>

#include "plimsoll/io/error.h"
#include "plimsoll/io/error_testing.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/line_reader.h"
#include "plimsoll/io/mapped_file.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/io/text_files.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Message of the error that body throws; fails if body waits.
std::string error_without_waiting(const std::function<void()>& body) {
  std::future<std::string> message = std::async(std::launch::async, [&] { return error_of(body); });
  EXPECT_EQ(message.wait_for(std::chrono::minutes(5)), std::future_status::ready) << "it waits";
  return message.get();
}

fs::path make_pipe(const TemporaryDirectory& directory) {
  const fs::path path = directory / "pipe";
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  return path;
}

fs::path make_socket(const TemporaryDirectory& directory) {
  const fs::path path = directory / "socket";
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.native().copy(address.sun_path, sizeof(address.sun_path) - 1);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return path;
}

TEST(RegularFile, NothingElseIsReadAndNothingWaits) {
  const TemporaryDirectory directory;
  const std::vector<std::pair<fs::path, std::string>> cases = {{make_pipe(directory), "got a pipe"},
                                                               {make_socket(directory), "got a socket"},
                                                               {"/dev/zero", "got a device"},
                                                               {directory.path(), "got a directory"},
                                                               {directory / "absent", "cannot open: No such file"}};
  for (const auto& [path, expected] : cases) {
    for (const auto& read : std::vector<std::function<void()>>{
             [&path = path] { open_regular_file(path); }, [&path = path] { read_file(path, 100); },
             [&path = path] { read_json(path); }, [&path = path] { MappedFile{path}; },
             [&path = path] { LineReader{path}; }}) {
      EXPECT_THAT(error_without_waiting(read), HasSubstr(expected)) << path;
    }
  }
}

TEST(RegularFile, LargerOnesThanTheReaderCanUseAreRefusedUnread) {
  const TemporaryDirectory directory;
  write_plainly(directory / "file", "12345");
  EXPECT_EQ(read_file(directory / "file", 5), "12345");
  EXPECT_THAT(error_without_waiting([&] { read_file(directory / "file", 4); }),
              HasSubstr("expected a file of at most 4 bytes, got 5"));
  fs::resize_file(directory / "file", uintmax_t{1} << 40);  // sparse
  EXPECT_THAT(error_without_waiting([&] { read_json(directory / "file"); }), HasSubstr("expected a file of at most"));
  EXPECT_THAT(error_without_waiting([&] {
                LineReader reader(directory / "file");
                for (std::string line; reader.next(line);) {
                }
              }),
              HasSubstr("expected lines of at most"));
}

TEST(RegularFile, LinksToOneAreFollowed) {
  const TemporaryDirectory directory;
  write_plainly(directory / "file", "text");
  fs::create_symlink(directory / "file", directory / "link");
  fs::create_symlink(make_pipe(directory), directory / "pipe link");
  EXPECT_EQ(read_file(directory / "link", 100), "text");
  EXPECT_THAT(error_without_waiting([&] { read_file(directory / "pipe link", 100); }), HasSubstr("got a pipe"));
}

TEST(RegularFile, PipesInADirectoryAreNoTextFiles) {
  const TemporaryDirectory directory;
  make_pipe(directory);
  EXPECT_THAT(error_without_waiting([&] { find_text_files({directory.path()}); }), HasSubstr("got none in it"));
  write_plainly(directory / "text", "a");
  EXPECT_THAT(find_text_files({directory.path()}), testing::ElementsAre(directory / "text"));
}

std::vector<std::string> lines_of(const fs::path& path) {
  LineReader reader(path);
  std::vector<std::string> lines;
  for (std::string line; reader.next(line);) lines.push_back(line);
  return lines;
}

TEST(LineReader, LinesAreThoseOfTheStandardLibrary) {
  const TemporaryDirectory directory;
  const std::string longer(100'000, 'x');
  for (const std::string& text : {std::string(), std::string("\n"), std::string("a"), std::string("a\n"),
                                  std::string("a\n\nb\r\n"), std::string("a\0b\n\0", 5), longer, longer + "\n" + longer,
                                  std::string(65536, 'y') + "\nz", std::string(65535, 'y') + "\nz\n"}) {
    write_plainly(directory / "file", text);
    std::vector<std::string> expected;
    std::ifstream stream(directory / "file", std::ios::binary);
    for (std::string line; std::getline(stream, line);) expected.push_back(line);
    EXPECT_EQ(lines_of(directory / "file"), expected) << text.size();
  }
}

TEST(LineReader, WhatIsAddedAfterwardsIsNotRead) {
  const TemporaryDirectory directory;
  write_plainly(directory / "file", "a\nb");
  LineReader reader(directory / "file");
  std::ofstream(directory / "file", std::ios::app) << "c\nd\n";
  std::string line;
  EXPECT_TRUE(reader.next(line) && line == "a");
  EXPECT_TRUE(reader.next(line) && line == "b");
  EXPECT_FALSE(reader.next(line));
}

}  // namespace
}  // namespace plimsoll::io
