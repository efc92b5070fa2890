// Steps of a decoder on a team of threads: the bits of its layers, for every family.
#include "plimsoll/io/testing.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/team/testing.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

TEST(DecoderStep, GivesTheBitsOfTheLayersForEveryFamily) {
  const at::NoGradGuard no_grad;
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const std::string dtype : {"fp32", "bf16", "fp16", "codes"}) {
      at::manual_seed(3);
      Decoder model(config);
      nn::testing::randomize(*model);
      model->to(dtype == "codes" ? at::kBFloat16 : ops::dtype_of(ops::parse_format(dtype, "test")));
      if (dtype == "codes") model->hold_codes();
      model->eval();
      testing::expect_bits_of_layers(*model, std::string(traits_of(config.family).model_type) + ", " + dtype);
    }
  }
}

TEST(DecoderStep, AFileLoadsAsTheCodesOfItsModel) {
  const at::NoGradGuard no_grad;
  for (const DecoderConfig& config : testing::small_decoders()) {
    SCOPED_TRACE(traits_of(config.family).model_type);
    at::manual_seed(5);
    Decoder model(config);
    nn::testing::randomize(*model);
    model->to(at::kBFloat16);
    model->eval();
    const io::TemporaryDirectory directory;
    save(*model, directory.path());
    const LoadedModel loaded = load(directory.path(), {.dtype = WeightDtype::kFp8});
    model->hold_codes();
    const at::Tensor tokens = at::randint(config.vocabulary, {2, 9}, at::kLong);
    const at::Tensor expected = model->logits(tokens);
    EXPECT_TRUE(at::equal(loaded.model->logits(tokens), expected));
    for (const auto& parameter : loaded.model->module().named_parameters()) {
      const bool is_of_product = parameter.value().dim() == 2 && !parameter.key().ends_with("embedding.weight");
      EXPECT_EQ(parameter.value().stride(0) == 0, is_of_product) << parameter.key();
    }
  }
}

// The loss of a head that has codes alone reads no value of its weight.
TEST(DecoderStep, CodesGiveLossAndLogitsOfOneModel) {
  const at::NoGradGuard no_grad;
  for (const bool ties : {false, true}) {
    DecoderConfig config = testing::small_decoders().front();
    config.vocabulary = 5000;  // whose logits the loss of values never holds whole
    config.ties_head = ties;
    at::manual_seed(4);
    Decoder model(config);
    model->eval();
    model->hold_codes();
    const at::Tensor tokens = at::randint(config.vocabulary, {2, 9}, at::kLong);
    const at::Tensor targets = at::randint(config.vocabulary, {2, 9}, at::kLong);
    const at::Tensor expected = at::cross_entropy_loss(model->logits(tokens).flatten(0, 1), targets.flatten());
    const double bound = 0x1p-24 * (std::log2(5000.0) + 18 + 8) * std::abs(expected.item<double>());
    EXPECT_LE(std::abs((model->loss(tokens, targets) - expected).item<double>()), bound) << ties;
  }
}

}  // namespace
}  // namespace plimsoll::models
