#include "plimsoll/io/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <string>

#include "plimsoll/io/error.h"
#include "plimsoll/io/process_testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Makes writes beyond `bytes` of a file fail, as a full disk does.
class ScopedFileSizeLimit {
 public:
  explicit ScopedFileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~ScopedFileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  ScopedFileSizeLimit(const ScopedFileSizeLimit&) = delete;
  ScopedFileSizeLimit& operator=(const ScopedFileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(AtomicFile, HoldsWhatWasWritten) {
  const TemporaryDirectory directory;
  write_file(directory / "a", "first");
  write_file(directory / "a", "second");
  EXPECT_EQ(read_plainly(directory / "a"), "second");
  EXPECT_THAT(names_in(directory.path()), ElementsAre("a"));
}

TEST(AtomicFile, OldFileStaysUntilCommit) {
  const TemporaryDirectory directory;
  write_file(directory / "a", "old");
  {
    AtomicFile file(directory / "a");
    file.write("new");
    EXPECT_EQ(read_plainly(directory / "a"), "old");
  }
  EXPECT_EQ(read_plainly(directory / "a"), "old");
  EXPECT_THAT(names_in(directory.path()), ElementsAre("a"));
}

TEST(AtomicFile, FullDiskIsAnErrorAndLeavesTheOldFile) {
  const TemporaryDirectory directory;
  write_file(directory / "a", "old");
  {
    const ScopedFileSizeLimit limit(1000);
    EXPECT_THAT([&] { write_file(directory / "a", std::string(5000, 'x')); },
                ThrowsMessage<Error>(HasSubstr("a: cannot write: File too large")));
  }
  EXPECT_EQ(read_plainly(directory / "a"), "old");
  EXPECT_THAT(names_in(directory.path()), ElementsAre("a"));
}

// Writes a file in pieces, slowly enough that another process writes meanwhile.
void write_in_pieces(const std::filesystem::path& path, char letter) {
  AtomicFile file(path);
  const std::string piece(10'000, letter);
  for (int i = 0; i < 100; ++i) file.write(piece);
  file.commit();
}

TEST(AtomicFile, OfTwoProcessesThatWriteOneFileEachWritesAWholeOne) {
  const TemporaryDirectory directory;
  for (int round = 0; round < 20; ++round) {
    ForkedChild first([&] { write_in_pieces(directory / "a", 'x'); });
    ForkedChild second([&] { write_in_pieces(directory / "a", 'y'); });
    EXPECT_EQ(first.wait(), 0);
    EXPECT_EQ(second.wait(), 0);
    const std::string text = read_plainly(directory / "a");
    EXPECT_EQ(text, std::string(1'000'000, text.at(0)));
    EXPECT_THAT(names_in(directory.path()), ElementsAre("a"));
  }
}

TEST(AtomicFile, TheNextWriterRemovesWhatAKilledOneLeftAndNotWhatALiveOneWrites) {
  const TemporaryDirectory directory;
  ForkedChild killed([&] {
    AtomicFile file(directory / "a");
    file.write("half");
    ::raise(SIGKILL);
  });
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_THAT(names_in(directory.path()), ElementsAre(::testing::StartsWith("a.")));
  write_plainly(directory / "a.partial", "a user's");
  write_plainly(directory / "ab.01234567.partial", "of another file");
  AtomicFile live(directory / "a");
  live.write("live");
  write_file(directory / "a", "other");
  EXPECT_THAT(names_in(directory.path()), ::testing::SizeIs(4)) << "a, live's, and two that are none of a's";
  live.commit();
  EXPECT_EQ(read_plainly(directory / "a"), "live");
  EXPECT_THAT(names_in(directory.path()), ElementsAre("a", "a.partial", "ab.01234567.partial"));
}

TEST(AtomicFile, DeviceIsNeverReplaced) {
  EXPECT_THAT([] { write_file("/dev/null", "x"); }, ThrowsMessage<Error>(HasSubstr("expected a regular file")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(AtomicFile, MissingDirectoryIsNamed) {
  EXPECT_THAT([] { write_file("/nowhere/at/all", "x"); },
              ThrowsMessage<Error>(HasSubstr("/nowhere/at/all: cannot create")));
}

TEST(WriteAll, FullDeviceIsAnError) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full);
  EXPECT_THAT([&] { write_all(full.get(), std::as_bytes(std::span("x", 1)), "log"); },
              ThrowsMessage<Error>(HasSubstr("log: cannot write: No space left on device")));
}

}  // namespace
}  // namespace plimsoll::io
