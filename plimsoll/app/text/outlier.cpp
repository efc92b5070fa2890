#include "plimsoll/app/text/outlier.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "plimsoll/app/error.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/load.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

fs::path make_temporary_directory() {
  std::string name = (fs::temp_directory_path() / "plimsoll-XXXXXX").native();
  if (::mkdtemp(name.data()) == nullptr)
    fail("{}: cannot make a directory: {}", name, std::string(std::strerror(errno)));
  return name;
}

void expect_below(const char* what, int64_t got, int64_t count) {
  if (got >= count) refuse("--inject: expected a {} below {}, got {}", what, count, got);
}

}  // namespace

void put_outlier(models::LanguageModel& model, const Outlier& outlier) {
  const at::NoGradGuard no_grad;
  const auto* decoder = dynamic_cast<const models::DecoderImpl*>(&model);
  if (decoder == nullptr) refuse("--inject: expected a model of a Hugging Face family, got another");
  const models::DecoderConfig& config = decoder->config;
  expect_below("layer", outlier.layer, config.layers);
  expect_below("channel", outlier.channel, config.groups * config.head_dim);
  const auto weights = model.weights_with_freedom();
  const std::string attention = fmt::format("blocks.{}.self_attention.", outlier.layer);
  for (const char* part : {"value_weight", "value_bias"}) {
    const auto found = weights.find(attention + "layernorm_qkv." + part);
    if (found != weights.end()) found->second.select(0, outlier.channel).mul_(outlier.factor);
  }
  const at::Tensor& reads = weights.at(attention + "proj.weight");
  const int64_t shared = config.heads / config.groups, group = outlier.channel / config.head_dim;
  for (int64_t head = group * shared; head < (group + 1) * shared; ++head) {
    reads.select(1, head * config.head_dim + outlier.channel % config.head_dim).div_(outlier.factor);
  }
}

DirectoryWithOutlier::DirectoryWithOutlier(const fs::path& source, const Outlier& outlier)
    : path_(make_temporary_directory()) {
  try {
    const models::LoadedModel loaded = models::load(source, {.dtype = models::WeightDtype::kFp32});
    put_outlier(*loaded.model, outlier);
    models::save(*loaded.model, path_, {.source = source});
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    throw;
  }
}

DirectoryWithOutlier::~DirectoryWithOutlier() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace plimsoll::app
