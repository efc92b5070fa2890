#include "plimsoll/models/decoder/save.h"

#include <gtest/gtest.h>

#include <fstream>

#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/decoder/testing.h"

namespace plimsoll::models {
namespace {

namespace fs = std::filesystem;

std::string text_from(std::istream& file) { return {std::istreambuf_iterator<char>(file), {}}; }

TEST(SaveDecoder, CompanionsTakeThePlaceOfOldOnesAndCanBeWrittenAgain) {
  const io::TemporaryDirectory source, out;
  io::write_plainly(source / "tokenizer.json", "new");
  fs::permissions(source / "tokenizer.json", fs::perms::owner_read);
  io::write_plainly(out / "tokenizer.json", "old");
  std::ifstream reader(out / "tokenizer.json", std::ios::binary);
  copy_companions(source.path(), out.path());
  EXPECT_EQ(io::read_plainly(out / "tokenizer.json"), "new");
  EXPECT_NE(fs::status(out / "tokenizer.json").permissions() & fs::perms::owner_write, fs::perms::none);
  EXPECT_EQ(text_from(reader), "old") << "the file was written in its place, where a crash would leave a part of it";
  EXPECT_EQ(io::names_in(out.path()), std::vector<std::string>{"tokenizer.json"});
  copy_companions(out.path(), out.path());
  EXPECT_EQ(io::read_plainly(out / "tokenizer.json"), "new");
}

TEST(SaveDecoder, ADtypeThatConfigsCannotNameLeavesTheDirectoryAsItWas) {
  const io::TemporaryDirectory source, out;
  io::write_plainly(source / "config.json", "{}");
  io::write_plainly(source / "tokenizer.json", "new");
  io::write_plainly(out / "tokenizer.json", "old");
  Decoder model(testing::small_decoder(traits_of(DecoderFamily::kLlama)));
  model->to(at::kDouble);
  try {
    save_decoder(*model, out.path(), {.source = source.path()});
    ADD_FAILURE() << "expected an error";
  } catch (const io::Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "save: expected weights in float32, bfloat16, float16, got Double for 'model.embed_tokens.weight'");
  }
  EXPECT_EQ(io::names_in(out.path()), std::vector<std::string>{"tokenizer.json"});
  EXPECT_EQ(io::read_plainly(out / "tokenizer.json"), "old");
}

}  // namespace
}  // namespace plimsoll::models
