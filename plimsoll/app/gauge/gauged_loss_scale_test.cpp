#include "plimsoll/app/gauge/gauged_loss_scale.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::app {
namespace {

// "": nothing.
std::string scale_of(const std::string& certificate, double targets_a_step) {
  const io::TemporaryDirectory folder;
  io::write_plainly(folder / kGaugeCertificate, certificate);
  const auto scale = gauged_loss_scale(folder.path(), targets_a_step);
  return scale ? scale->text : "";
}

std::string trained(double loss_scale, double most, int64_t targets) {
  return R"({"weights": [], "train": {"loss_scale": )" + std::to_string(loss_scale) + R"(, "most_loss_scale": )" +
         std::to_string(most) + R"(, "targets_a_step": )" + std::to_string(targets) + "}}";
}

TEST(GaugedLossScale, GrowsAsGradientsShrink) {
  EXPECT_EQ(scale_of(trained(1, 1e6, 512), 512), "none");
  EXPECT_EQ(scale_of(trained(1, 1e6, 512), 100), "none");
  EXPECT_EQ(scale_of(trained(1, 1e6, 512), 513), "2");
  EXPECT_EQ(scale_of(trained(64, 1e6, 1000), 16000), "1024");
  EXPECT_EQ(scale_of(trained(64, 1e6, 1000), 16), "2");  // 1.024
}

TEST(GaugedLossScale, IsSmallerWhereGradientsOfFewTargetsWouldOverflow) {
  EXPECT_EQ(scale_of(trained(1, 32, 4096), 128), "none");
  EXPECT_EQ(scale_of(trained(1, 32, 4096), 127), "0.5");
  EXPECT_EQ(scale_of(trained(64, 96, 100), 100), "64");
  EXPECT_EQ(scale_of(trained(64, 96, 100), 99), "64");
  EXPECT_EQ(scale_of(trained(65, 66, 100), 100), "64");  // no power of two is both
}

TEST(GaugedLossScale, IsNothingWithoutACertificateOfTraining) {
  const io::TemporaryDirectory folder;
  EXPECT_FALSE(gauged_loss_scale(folder.path(), 100).has_value());
  EXPECT_EQ(scale_of(R"({"weights": []})", 100), "");
}

TEST(GaugedLossScale, IsTheRecipesWhereAllOverflow) {
  EXPECT_EQ(scale_of(R"({"weights": [], "train": {"loss_scale": null}})", 100), "recipe");
}

TEST(GaugedLossScale, FilesThatAreNoCertificateAreNamed) {
  for (const std::string wrong : {"1.5", "{}", "[]", "null", R"({"weights": 3})", R"({"weights": [3]})",
                                  R"({"weights": [{"name": "a"}]})", R"({"weights": [{"name": 1, "amax": 2}]})"}) {
    EXPECT_THROW(scale_of(wrong, 100), Error) << wrong;
  }
}

// "": the weights are those of the certificate.
std::string other_weights(const models::LanguageModel& model, const std::string& name, double amax) {
  const io::TemporaryDirectory folder;
  io::write_plainly(folder / kGaugeCertificate,
                    nlohmann::json{{"weights", {{{"name", name}, {"amax", amax}}}}}.dump());  // NaN becomes null
  try {
    expect_certified_weights(folder.path(), model);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CertifiedWeights, AreThoseOfTheCertificateButForWhatBf16Rounds) {
  const at::NoGradGuard no_grad;
  models::Gpt model(models::GptConfig{.layers = 1, .dim = 64, .heads = 2, .context = 8});
  const std::string name = "blocks.0.layernorm_mlp.fc2_weight";
  at::Tensor weight = model->weights_with_freedom().at(name);
  weight[3][5] = -20;
  EXPECT_EQ(other_weights(*model, name, 20), "");
  EXPECT_EQ(other_weights(*model, name, 20 * (1 + 0x1p-9)), "");
  EXPECT_EQ(other_weights(*model, name, 20 * (1 - 0x1p-9)), "");
  EXPECT_THAT(other_weights(*model, name, 40),
              ::testing::HasSubstr("the largest of " + name + " is 20 in place of 40"));
  EXPECT_NE(other_weights(*model, name, 20 * (1 + 0x1p-7)), "");
  EXPECT_NE(other_weights(*model, name, 0), "");
  EXPECT_NE(other_weights(*model, name, NAN), "");
  EXPECT_THAT(other_weights(*model, "blocks.7.fc", 20), ::testing::HasSubstr("got none named blocks.7.fc"));
  weight[3][5] = NAN;
  EXPECT_NE(other_weights(*model, name, 20), "");
  EXPECT_EQ(other_weights(*model, name, NAN), "");
}

TEST(GaugedLossScale, WrongCertificatesAreNamed) {
  for (const std::string wrong :
       {R"({"weights": [], "train": 3})", R"({"weights": [], "train": {"loss_scale": "all"}})",
        R"({"weights": [], "train": {"loss_scale": 1, "targets_a_step": 5}})"}) {
    EXPECT_THROW(scale_of(wrong, 100), Error) << wrong;
  }
  for (const std::string& wrong : {trained(0.5, 2, 5), trained(4, 2, 5), trained(1, 2, 0), trained(-1, 2, 5)}) {
    EXPECT_THROW(scale_of(wrong, 100), Error) << wrong;
  }
}

}  // namespace
}  // namespace plimsoll::app
