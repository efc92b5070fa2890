#include "plimsoll/io/text.h"

#include <gmock/gmock.h>

#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/io/text_files.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TextFiles, DirectoriesGiveTheirTextFilesSorted) {
  const TemporaryDirectory directory;
  write_plainly(directory / "b.txt", "b");
  write_plainly(directory / "a/z.py", "z");
  write_plainly(directory / "a/empty.py", "");
  write_plainly(directory / "a/code.pyc", std::string("x\0y", 3));
  write_plainly(directory / ".git/config", "hidden");
  write_plainly(directory / ".hidden", "hidden");
  fs::create_directory_symlink(directory.path(), directory / "loop");
  EXPECT_THAT(find_text_files({directory.path()}), ElementsAre(directory / "a/z.py", directory / "b.txt"));
}

TEST(TextFiles, NamedFilesAreTakenInOrder) {
  const TemporaryDirectory directory;
  write_plainly(directory / "b", "b");
  write_plainly(directory / "a", std::string("\0", 1));
  EXPECT_THAT(find_text_files({directory / "b", directory / "a"}), ElementsAre(directory / "b", directory / "a"));
}

TEST(TextFiles, MissingPathAndDirectoryWithoutTextAreErrors) {
  const TemporaryDirectory directory;
  EXPECT_THAT([&] { find_text_files({directory / "absent"}); },
              ThrowsMessage<Error>(HasSubstr("absent: expected a file")));
  EXPECT_THAT([&] { find_text_files({directory.path()}); }, ThrowsMessage<Error>(HasSubstr("got none in it")));
}

TEST(Text, ReadsAcrossFiles) {
  const TemporaryDirectory directory;
  const std::string large(3'000'000, 'm');
  write_plainly(directory / "1", "abc");
  write_plainly(directory / "2", "");
  write_plainly(directory / "3", large);
  write_plainly(directory / "4", "xyz");
  const Text text({directory / "1", directory / "2", directory / "3", directory / "4"});
  const std::string whole = "abc" + large + "xyz";
  ASSERT_EQ(text.bytes(), static_cast<int64_t>(whole.size()));
  for (const size_t begin : {size_t{0}, size_t{1}, size_t{3}, large.size(), large.size() + 3, whole.size()}) {
    std::string read(whole.size() - begin, '?');
    text.read(static_cast<int64_t>(begin), std::as_writable_bytes(std::span(read)));
    EXPECT_TRUE(read == whole.substr(begin)) << begin;
  }
}

}  // namespace
}  // namespace plimsoll::io
