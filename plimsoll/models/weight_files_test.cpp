// Files of weights in a directory that had others before.
#include "plimsoll/models/weight_files.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "plimsoll/io/testing.h"

namespace plimsoll::models {
namespace {

constexpr int64_t kTensorBytes = 4 * sizeof(float);

// Four tensors, so many in a file.
void write_four(const std::filesystem::path& directory, int64_t tensors_a_file) {
  std::vector<io::TensorPlan> plans;
  for (const char* name : {"a", "b", "c", "d"}) plans.push_back({name, at::kFloat, {4}});
  WeightFiles files(directory, plans, tensors_a_file * kTensorBytes);
  for (const io::TensorPlan& plan : plans) files.write(plan.name, at::full({4}, 1.0));
  files.commit();
}

std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

TEST(ModelsWeightFiles, NoShardOfAnEarlierModelStays) {
  const io::TemporaryDirectory directory;
  const std::string index = "model.safetensors.index.json";
  const std::set<std::string> two = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", index};
  write_four(directory.path(), 1);
  EXPECT_EQ(names_in(directory.path()).size(), 5u);
  write_four(directory.path(), 2);
  EXPECT_EQ(names_in(directory.path()), two);
  write_four(directory.path(), 4);
  EXPECT_EQ(names_in(directory.path()), std::set<std::string>{"model.safetensors"});
  write_four(directory.path(), 2);
  EXPECT_EQ(names_in(directory.path()), two);
}

TEST(ModelsWeightFiles, FilesOfOtherNamesStay) {
  const io::TemporaryDirectory directory;
  const std::set<std::string> others = {"adapter_model.safetensors", "model-00001-of-00002.safetensors.orig",
                                        "model-1-of-2.safetensors", "my-model-00001-of-00002.safetensors"};
  for (const std::string& name : others) io::write_plainly(directory / name, "kept");
  write_four(directory.path(), 4);
  std::set<std::string> expected = others;
  expected.insert("model.safetensors");
  EXPECT_EQ(names_in(directory.path()), expected);
}

}  // namespace
}  // namespace plimsoll::models
