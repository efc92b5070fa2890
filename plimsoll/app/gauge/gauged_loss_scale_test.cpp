#include "plimsoll/app/gauge/gauged_loss_scale.h"

#include <gtest/gtest.h>

#include <string>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge.h"
#include "plimsoll/io/testing.h"

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
  return R"({"train": {"loss_scale": )" + std::to_string(loss_scale) + R"(, "most_loss_scale": )" +
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
  EXPECT_EQ(scale_of("{}", 100), "");
  EXPECT_EQ(scale_of(R"({"train": {"loss_scale": null}})", 100), "");
}

TEST(GaugedLossScale, WrongCertificatesAreNamed) {
  for (const std::string wrong : {R"({"train": 3})", R"({"train": {"loss_scale": "all"}})",
                                  R"({"train": {"loss_scale": 1, "targets_a_step": 5}})"}) {
    EXPECT_THROW(scale_of(wrong, 100), Error) << wrong;
  }
  for (const std::string& wrong : {trained(0.5, 2, 5), trained(4, 2, 5), trained(1, 2, 0), trained(-1, 2, 5)}) {
    EXPECT_THROW(scale_of(wrong, 100), Error) << wrong;
  }
}

}  // namespace
}  // namespace plimsoll::app
