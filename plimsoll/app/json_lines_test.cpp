#include "plimsoll/app/json_lines.h"

#include <gmock/gmock.h>

#include "plimsoll/app/error.h"
#include "plimsoll/io/error.h"
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

TEST(JsonLines, ResumeDropsLostStepsTornLinesAndTheSummary) {
  const io::TemporaryDirectory directory;
  const std::string good = "{\"step\":1}\n{\"step\":2}\n";
  for (const char* rest : {"", "{\"step\":3}\n", "{\"st", "{\"final_val_loss\":1}\n", "{\"step\":3}\n{\"step\":1}\n"}) {
    io::write_plainly(directory / "log", good + rest);
    JsonLines::resume(directory / "log", 2).write({{"step", 3}, {"new", true}});
    EXPECT_EQ(io::read_plainly(directory / "log"), good + "{\"new\":true,\"step\":3}\n") << rest;
  }
}

TEST(JsonLines, ResumeWithoutAFileStartsOne) {
  const io::TemporaryDirectory directory;
  JsonLines::resume(directory / "log", 2).write({{"step", 3}});
  EXPECT_EQ(last_json_line(directory / "log")->at("step"), 3);
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
