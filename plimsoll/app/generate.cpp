#include "plimsoll/app/generate.h"

#include <algorithm>
#include <string_view>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/gpt_model.h"
#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/io/byte_tokenizer.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/runtime/philox.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

io::Checkpoint load(const fs::path& path) {
  if (fs::exists(path / "manifest.json")) return io::load_checkpoint(path);
  auto latest = io::load_latest_checkpoint(path);
  if (!latest) fail("{}: expected a checkpoint or a run with one, got none", path.native());
  return std::move(latest->checkpoint);
}

// A trained model that reads bytes and predicts the next.
class Reader {
 public:
  explicit Reader(const io::Checkpoint& checkpoint)
      : shape_(checkpoint.state.at("shape").get<ModelShape>()),
        recipe_(parse_recipe(checkpoint.state.at("recipe").get<std::string>())),
        model_(make_gpt(shape_, 0)),
        cache_(model_->config) {
    load_tensors(model_, checkpoint.sections.at("model"));
    model_->eval();
  }

  // The logits [256] of what follows everything read so far.
  at::Tensor read(std::string_view text) {
    seen_ += text;
    if (cache_.length() + static_cast<int64_t>(text.size()) > shape_.context) {
      const auto half = static_cast<size_t>(std::max<int64_t>(1, shape_.context / 2));
      if (seen_.size() > half) seen_.erase(0, seen_.size() - half);
      cache_.clear();
      text = seen_;
    }
    amp::Fp8Autocast scope({.recipe = recipe_});
    const at::Tensor logits = model_->extend(io::encode_bytes(text).unsqueeze(0), cache_);
    return logits.select(1, logits.size(1) - 1).squeeze(0).contiguous();
  }

 private:
  ModelShape shape_;
  recipe::Recipe recipe_;
  nn::Gpt model_;
  nn::GptCache cache_;
  std::string seen_;
};

Reader make_reader(const fs::path& path) {
  try {
    return Reader(load(path));
  } catch (const nlohmann::json::exception&) {
    fail("{}: expected the state of a training run, got another checkpoint", path.native());
  } catch (const std::out_of_range&) {
    fail("{}: expected a checkpoint with a model", path.native());
  }
}

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(char)>& sink) {
  const at::NoGradGuard no_grad;
  Reader reader = make_reader(options.checkpoint);
  const runtime::Philox philox{.seed = static_cast<uint64_t>(options.seed)};
  std::string next = options.prompt.empty() ? "\n" : options.prompt;
  for (int64_t i = 0; i < options.tokens; ++i) {
    const at::Tensor logits = reader.read(next);
    const double uniform = philox.word(static_cast<uint64_t>(i)) * 0x1p-32;
    next =
        io::decode_byte(nn::sample({logits.const_data_ptr<float>(), io::kByteVocabulary}, options.sampling, uniform));
    sink(next.front());
  }
}

}  // namespace plimsoll::app
