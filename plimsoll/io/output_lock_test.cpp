#include "plimsoll/io/output_lock.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>

#include "plimsoll/io/error.h"
#include "plimsoll/io/process_testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// A process that takes the lock of a directory and says so.
class Holder {
 public:
  explicit Holder(
      const std::filesystem::path& directory, const std::function<void()>& then = [] { ::pause(); })
      : ready_(make_pipe()), child_([&] {
          const OutputLock lock = OutputLock::of_directory(directory);
          if (::write(ready_[1], "+", 1) != 1) _exit(2);
          then();
        }) {
    char letter = 0;
    if (::read(ready_[0], &letter, 1) != 1) throw std::runtime_error("the holder has ended");
  }
  ~Holder() { ::close(ready_[0]), ::close(ready_[1]); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  ForkedChild& child() { return child_; }

 private:
  static std::array<int, 2> make_pipe() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("cannot make a pipe");
    return ends;
  }

  std::array<int, 2> ready_;
  ForkedChild child_;
};

TEST(OutputLock, RefusesASecondProcessAndNamesTheFirst) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  Holder holder(run);
  EXPECT_THAT([&] { OutputLock::of_directory(run); },
              ThrowsMessage<Error>(HasSubstr("run: expected a place that no other process writes to, got one that "
                                             "another run (process " +
                                             std::to_string(holder.child().id()) + ") has")));
}

TEST(OutputLock, OfAPlaceThatIsNoDirectoryNamesIt) {
  const TemporaryDirectory directory;
  write_plainly(directory / "file", "text");
  for (const char* place : {"file", "file/run"}) {
    EXPECT_THAT([&] { OutputLock::of_directory(directory / place); },
                ThrowsMessage<Error>(EndsWith(std::string(place) + ": cannot write there: Not a directory")));
  }
}

TEST(OutputLock, EndsWithItsProcessHoweverThatEnds) {
  const TemporaryDirectory directory;
  Holder holder(directory / "run");
  holder.child().kill();
  EXPECT_EQ(holder.child().wait(), 128 + SIGKILL);
  { const OutputLock lock = OutputLock::of_directory(directory / "run"); }
  EXPECT_THAT(names_in(directory / "run"), IsEmpty());
}

TEST(OutputLock, IsSharedByOneProcess) {
  const TemporaryDirectory directory;
  const auto refused = [&] {
    ForkedChild other([&] { OutputLock::of_directory(directory.path()); });
    return other.wait() == 1;
  };
  {
    const OutputLock first = OutputLock::of_directory(directory.path());
    { const OutputLock second = OutputLock::of_directory(directory.path()); }
    EXPECT_TRUE(refused()) << "the first still has it";
    OutputLock moved = OutputLock::of_directory(directory.path());
    const OutputLock last = std::move(moved);
  }
  EXPECT_FALSE(refused());
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

// Workers that a run forks may live on for a moment after it was killed.
TEST(OutputLock, IsNotInheritedByForkedChildren) {
  const TemporaryDirectory directory;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  Holder holder(directory.path(), [&] {
    if (fork() == 0) {  // the worker says so itself: it has begun, and what runs first in a child has run
      const pid_t worker = ::getpid();
      if (::write(ends[1], &worker, sizeof(worker)) != sizeof(worker)) _exit(2);
    }
    ::pause();
  });
  pid_t worker = 0;
  ASSERT_EQ(::read(ends[0], &worker, sizeof(worker)), static_cast<ssize_t>(sizeof(worker)));
  EXPECT_THROW(OutputLock::of_directory(directory.path()), Error);
  holder.child().kill();
  holder.child().wait();
  EXPECT_NO_THROW(OutputLock::of_directory(directory.path()));
  EXPECT_EQ(::kill(worker, SIGKILL), 0) << "the worker was alive";
}

TEST(OutputLock, OfAFileStandsBesideIt) {
  const TemporaryDirectory directory;
  {
    const OutputLock lock = OutputLock::of_file(directory / "a");
    EXPECT_THAT(names_in(directory.path()), ::testing::ElementsAre("a.lock"));
    const OutputLock other = OutputLock::of_file(directory / "b");
  }
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

// A process that waits for the file of a lock that ends meets a file that has no name any more.
TEST(OutputLock, IsHeldByOneOfManyProcessesAtATime) {
  const TemporaryDirectory directory;
  const auto take_often = [&] {
    for (int i = 0; i < 300; ++i) {
      try {
        const OutputLock lock = OutputLock::of_directory(directory.path());
        if (::mkdir((directory / "inside").c_str(), 0700) != 0) throw std::runtime_error("two have the lock");
        ::rmdir((directory / "inside").c_str());
      } catch (const Error&) {
      }
    }
  };
  ForkedChild a(take_often), b(take_often), c(take_often);
  EXPECT_EQ(a.wait(), 0);
  EXPECT_EQ(b.wait(), 0);
  EXPECT_EQ(c.wait(), 0);
}

}  // namespace
}  // namespace plimsoll::io
