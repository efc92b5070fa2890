#include "plimsoll/app/json_lines.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plimsoll/app/error.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/file_descriptor.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::app {
namespace {

TEST(JsonLines, EachLineIsInTheFileAtOnce) {
  const io::TemporaryDirectory directory;
  JsonLines lines = JsonLines::create(directory / "log");
  lines.write({{"step", 1}});
  EXPECT_EQ(io::read_plainly(directory / "log"), "{\"step\":1}\n");
  lines.write({{"step", 2}});
  EXPECT_EQ(last_json_line(directory / "log")->at("step"), 2);
}

TEST(JsonLines, OpenLeavesWhatIsThereUntilItIsCleared) {
  const io::TemporaryDirectory directory;
  io::write_plainly(directory / "log", "old\n");
  JsonLines lines = JsonLines::open(directory / "log");
  EXPECT_EQ(io::read_plainly(directory / "log"), "old\n");
  EXPECT_THROW(JsonLines::open(directory / "log"), Error);
  lines.clear();
  lines.write({{"step", 1}});
  EXPECT_EQ(io::read_plainly(directory / "log"), "{\"step\":1}\n");
  JsonLines::open("").clear();
}

TEST(JsonLines, ResumeDropsLostStepsTornLinesAndTheSummary) {
  const io::TemporaryDirectory directory;
  const std::string good = "{\"step\":1}\n{\"step\":2}\n";
  for (const char* rest : {"", "{\"step\":3}\n", "{\"st", "{\"final_val_loss\":1}\n", "{\"step\":3}\n{\"step\":1}\n"}) {
    io::write_plainly(directory / "log", good + rest);
    JsonLines::resume(directory / "log", 2).write({{"step", 3}, {"new", true}});
    EXPECT_EQ(io::read_plainly(directory / "log"), good + "{\"new\":true,\"step\":3}\n") << rest;
  }
}

TEST(JsonLines, ResumeKeepsWhatStandsBehindATornLine) {
  const io::TemporaryDirectory directory;
  io::write_plainly(directory / "log", "{\"step\":1}\n{\"step\":2,\"lo\n{\"step\":3}\n{\"step\":4}\n{\"step\":5}\n");
  JsonLines::resume(directory / "log", 4);
  EXPECT_EQ(io::read_plainly(directory / "log"), "{\"step\":1}\n{\"step\":3}\n{\"step\":4}\n");
}

TEST(JsonLines, ResumeWithoutAFileStartsOne) {
  const io::TemporaryDirectory directory;
  JsonLines::resume(directory / "log", 2).write({{"step", 3}});
  EXPECT_EQ(last_json_line(directory / "log")->at("step"), 3);
}

TEST(JsonLines, APipeThatNobodyReadsIsAnErrorAndOneThatSomebodyReadsIsWritten) {
  const io::TemporaryDirectory directory;
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(JsonLines::create(pipe), Error);
  EXPECT_THROW(JsonLines::resume(pipe, 1), Error);
  const io::FileDescriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  JsonLines::create(pipe).write({{"step", 1}});
  std::string text(64, '\0');
  const ssize_t count = ::read(reader.get(), text.data(), text.size());
  ASSERT_GT(count, 0);
  EXPECT_EQ(text.substr(0, static_cast<size_t>(count)), "{\"step\":1}\n");
}

TEST(JsonLines, FullDiskIsAnError) {
  JsonLines lines = JsonLines::create("/dev/full");
  EXPECT_THROW(lines.write({{"step", 1}}), io::Error);
}

TEST(JsonLines, WithoutAPathNothingIsKept) { EXPECT_NO_THROW(JsonLines::create("").write({{"step", 1}})); }

TEST(JsonLines, MissingDirectoryIsAnError) { EXPECT_THROW(JsonLines::create("/nowhere/log"), Error); }

TEST(JsonLines, ATornLineIsNoLastLine) {
  const io::TemporaryDirectory directory;
  for (const char* text : {"", "{\"step\":1}\n{\"st"}) {
    io::write_plainly(directory / "log", text);
    EXPECT_FALSE(last_json_line(directory / "log")) << text;
  }
  EXPECT_FALSE(last_json_line(directory / "absent"));
}

}  // namespace
}  // namespace plimsoll::app
