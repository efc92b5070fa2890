#include "plimsoll/io/hugging_face_directory.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class AModelsDirectory : public testing::Test {
 protected:
  AModelsDirectory() { write_plainly(files_ / "config.json", "{}"); }

  void write(const char* name, const TensorMap& tensors) const { save_safetensors(files_ / name, tensors); }
  void write_index(const std::string& map) const {
    write_plainly(files_ / "model.safetensors.index.json", R"({"metadata": {}, "weight_map": )" + map + "}");
  }

  void expect_refused(const std::string& expected) const {
    try {
      HuggingFaceDirectory directory(files_.path());
      FAIL() << "expected an error with: " << expected;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(expected), Not(HasSubstr("\n"))));
    }
  }

  const at::Tensor a_ = at::full({2, 3}, 1.5), b_ = at::full({4}, 2, at::kHalf);
  TemporaryDirectory files_;
};

TEST_F(AModelsDirectory, OneFileAndItsShardsHoldTheSameTensors) {
  write("model.safetensors", {{"a", a_}, {"b", b_}});
  const HuggingFaceDirectory whole(files_.path());
  std::filesystem::remove(files_ / "model.safetensors");
  write("one.safetensors", {{"a", a_}, {"unlisted", b_}});
  write("two.safetensors", {{"b", b_}});
  write_index(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  const HuggingFaceDirectory shards(files_.path());
  for (const HuggingFaceDirectory* directory : {&whole, &shards}) {
    EXPECT_TRUE(at::equal(directory->tensor("a"), a_));
    EXPECT_TRUE(at::equal(directory->tensor("b"), b_));
    EXPECT_FALSE(directory->contains("unlisted"));
    EXPECT_THROW(directory->tensor("c"), Error);
  }
}

TEST_F(AModelsDirectory, NamesBeyondWhatTheFileSystemTakesAreAnError) {
  write_index(R"({"a": ")" + std::string(5000, 'a') + R"("})");
  expect_refused("File name too long");
}

TEST_F(AModelsDirectory, TensorsWhosePagesWereGivenBackAreReadAgain) {
  const at::Tensor large = at::arange(100'000, at::kFloat);
  write("model.safetensors", {{"a", a_}, {"large", large}});
  std::function<void()> release;
  at::Tensor tensor;
  {
    const HuggingFaceDirectory directory(files_.path());
    tensor = directory.tensor("large");
    release = directory.releaser("large");
    EXPECT_THROW(directory.releaser("b"), Error);
  }
  tensor.mul_(2);
  release();
  // Whole pages are the file's again; what shares its first and last page with others may not be.
  EXPECT_TRUE(at::equal(tensor.narrow(0, 1024, 90'000), large.narrow(0, 1024, 90'000)));
}

TEST_F(AModelsDirectory, AllThatContradictsTheModelIsNamedAtOnce) {
  write("model.safetensors", {{"a", a_}, {"b", b_}, {"model.c", b_}, {"other.d", b_}});
  const HuggingFaceDirectory directory(files_.path());
  const auto is_of_model = [](const std::string& name) { return !name.starts_with("other."); };
  directory.check_tensors({{"a", {2, 3}}, {"b", {4}}, {"model.c", {4}}}, is_of_model);
  try {
    directory.check_tensors({{"a", {3, 2}}, {"b", {4}}, {"x", {1}}, {"y", {1}}}, is_of_model);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("missing: x, y; of another shape: a [2, 3] instead of [3, 2]; unknown: model.c"));
  }
}

TEST_F(AModelsDirectory, ALongListOfNamesIsItsBeginningAndANumber) {
  write("model.safetensors", {{"a", a_}});
  HuggingFaceDirectory::Shapes expected = {{"a", {2, 3}}};
  for (int i = 0; i < 272; ++i) expected.emplace("layers." + std::to_string(1000 + i), std::vector<int64_t>{1});
  EXPECT_THAT(
      [&] { HuggingFaceDirectory(files_.path()).check_tensors(expected, [](const std::string&) { return true; }); },
      testing::ThrowsMessage<Error>(testing::EndsWith(
          "; missing: layers.1000, layers.1001, layers.1002, layers.1003, layers.1004 and 267 more")));
}

TEST_F(AModelsDirectory, LyingAndTruncatedFilesAreRefused) {
  expect_refused("expected model.safetensors or model.safetensors.index.json, got neither");
  write("model.safetensors", {{"a", a_}});
  const std::string whole = read_plainly(files_ / "model.safetensors");
  for (const size_t size : {size_t{0}, size_t{7}, size_t{20}, whole.size() - 1}) {
    write_plainly(files_ / "model.safetensors", whole.substr(0, size));
    expect_refused("truncated?");
  }
  std::string lying = whole;
  lying.replace(lying.find("[2,3]"), 5, "[9,3]");
  write_plainly(files_ / "model.safetensors", lying);
  expect_refused("tensor 'a': expected 108 bytes");
  write_plainly(files_ / "model.safetensors", whole);
  for (const auto& [config, expected] :
       std::map<std::string, std::string>{{"[]", "expected a JSON object"},
                                          {"{", "expected valid JSON"},
                                          {"{\"a\":1,\"a\":2}", "expected each key once"}}) {
    write_plainly(files_ / "config.json", config);
    expect_refused(expected);
  }
  std::filesystem::remove(files_ / "config.json");
  expect_refused("config.json: cannot open");
}

TEST_F(AModelsDirectory, AShardMayBeALinkToElsewhere) {
  const TemporaryDirectory blobs;  // as in Hugging Face's cache
  save_safetensors(blobs / "0123", {{"a", a_}});
  std::filesystem::create_symlink(blobs / "0123", files_ / "one.safetensors");
  write_index(R"({"a": "one.safetensors"})");
  EXPECT_TRUE(at::equal(HuggingFaceDirectory(files_.path()).tensor("a"), a_));
}

TEST_F(AModelsDirectory, AnIndexMustSpeakTheTruth) {
  write("one.safetensors", {{"a", a_}});
  struct Lie {
    const char* map;
    const char* expected;
  };
  for (const Lie& lie :
       {Lie{"[]", "expected an object with a weight_map"}, Lie{R"({"a": 1})", "expected a file's name"},
        Lie{R"({"a": "../one.safetensors"})", "expected a file beside the index"},
        Lie{R"({"a": ""})", "expected a file beside the index"},
        Lie{R"({"a": "."})", "expected a file beside the index"},
        Lie{R"({"a": ".."})", "expected a file beside the index"},
        Lie{R"({"a": "/one.safetensors"})", "expected a file beside the index"},
        Lie{R"({"a": "here/one.safetensors"})", "expected a file beside the index"},
        Lie{R"({"a": "x.safetensors", "b": "y.safetensors"})", "files x.safetensors, y.safetensors"},
        Lie{R"({"b": "one.safetensors", "c": "one.safetensors"})",
            "tensors b in one.safetensors, c in one.safetensors"}}) {
    write_index(lie.map);
    expect_refused(lie.expected);
  }
}

}  // namespace
}  // namespace plimsoll::io
