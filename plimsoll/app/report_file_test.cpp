#include "plimsoll/app/report_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <string>

#include "plimsoll/io/testing.h"

namespace plimsoll::app {
namespace {

bool is_free(const std::string& text) {
  const io::TemporaryDirectory directory;
  io::write_plainly(directory / "file", text);
  return is_free_for_report(directory / "file");
}

TEST(ReportFile, TakesThePlaceOfReportsAlone) {
  EXPECT_TRUE(is_free(""));
  EXPECT_TRUE(is_free("{\"loss\":1,\"step\":1}\n{\"loss\":1,\"st"));
  EXPECT_TRUE(is_free("{\n  \"dtypes\": {\n    \"fp32\": {}\n  }\n}\n"));
  for (const char* other : {"text\n", "{", "{}", "[]\n", "{\"loss\":1}\n", "{\n  \"model_type\": \"llama\"\n}\n",
                            "{\"step\":1,\"files\":{}}", "{\"messages\":[]}\n{\"step\":1,\"loss\":1}\n",
                            "{\"text\":\"a\"}\n", "\n{\"step\":1,\"loss\":1}\n"}) {
    EXPECT_FALSE(is_free(other)) << other;
  }
}

TEST(ReportFile, WhatIsNoFileHasNothingToLose) {
  const io::TemporaryDirectory directory;
  EXPECT_TRUE(is_free_for_report(directory / "none"));
  EXPECT_TRUE(is_free_for_report(directory / "none" / "none"));
  EXPECT_TRUE(is_free_for_report("/dev/null"));
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(is_free_for_report(directory / "pipe"));
}

}  // namespace
}  // namespace plimsoll::app
