#include "plimsoll/app/loss_scale.h"

#include <gtest/gtest.h>

#include "plimsoll/app/error.h"

namespace plimsoll::app {
namespace {

TEST(LossScale, IsReadFromText) {
  const recipe::Recipe fp16 = recipe::by_name("fp16"), bf16 = recipe::by_name("bf16");
  EXPECT_TRUE(parse_loss_scale("recipe", fp16).enabled);
  EXPECT_FALSE(parse_loss_scale("recipe", bf16).enabled);
  EXPECT_FALSE(parse_loss_scale("none", fp16).enabled);
  EXPECT_FALSE(parse_loss_scale("dynamic", bf16).automatic.has_value());
  EXPECT_TRUE(parse_loss_scale("auto", bf16).automatic.has_value());
  EXPECT_EQ(parse_loss_scale("1024", bf16).init_scale, 1024);
  for (const char* wrong : {"", "0", "-1", "1e40", "1e-46", "nan", "12x", "automatic"}) {
    EXPECT_THROW(parse_loss_scale(wrong, fp16), UsageError) << wrong;
  }
}

}  // namespace
}  // namespace plimsoll::app
