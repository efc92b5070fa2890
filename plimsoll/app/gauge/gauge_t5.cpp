#include "plimsoll/app/gauge/gauge_t5.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge_certificate.h"
#include "plimsoll/app/gauge/gauge_rewrite.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/relative_error.h"
#include "plimsoll/app/t5/t5_examples.h"
#include "plimsoll/app/text/mapped_logits.h"
#include "plimsoll/gauge/t5_calibration.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/t5/freedoms.h"
#include "plimsoll/models/t5/load.h"
#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The certificate says whether what is written is finite in FP16, and search() refuses a source that is not.
void ignore(const std::string&) {}

constexpr int64_t kTextTokens = 64;  // of the text that is drawn where nothing is given to calibrate on

// Says that it measures once the inputs serve.
std::vector<models::T5Input> read_inputs(const GaugeOptions& options, models::T5ForConditionalGenerationImpl& model) {
  if (options.calibrate.empty()) {
    options.progress("weights");
    at::manual_seed(0);
    T5Example drawn;
    const at::Tensor ids = at::randint(model.config.vocab_size, {kTextTokens}, at::kLong);
    drawn.input.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + kTextTokens);
    return t5_inputs_of({std::move(drawn)}, model,
                        {.batch = 1, .max_new_tokens = options.max_new_tokens, .check = options.check});
  }
  T5Texts texts(options.model, model.config.vocab_size);
  std::vector<T5Example> examples = texts.read_examples(options.calibrate);
  options.progress("values in FP32");
  return t5_inputs_of(std::move(examples), model,
                      {.batch = options.batch, .max_new_tokens = options.max_new_tokens, .check = options.check});
}

json coverage(const GaugeOptions& options, const std::vector<models::T5Input>& inputs) {
  int64_t texts = 0, tokens = 0, decoder_tokens = 0;
  for (const models::T5Input& input : inputs) {
    texts += input.input_ids.size(0);
    tokens += input.attention_mask.sum().item<int64_t>();
    if (input.decoder_input_ids.defined()) decoder_tokens += input.decoder_attention_mask.sum().item<int64_t>();
  }
  json result = calibration_json(options.calibrate, texts, tokens);
  if (!options.calibrate.empty()) result["decoder_tokens"] = decoder_tokens;
  return result;
}

// Largest values for any input.
models::Amaxes bounds_of(const models::T5ForConditionalGenerationImpl& model) {
  const watch::AuditedRun run("bounds");
  return models::worst_case_amaxes(model);
}

// Inputs with the outputs of the source in FP32.
struct Observed {
  std::vector<models::T5Input> inputs;
  std::vector<models::T5Output> outputs;
};

// Logits are in the memory of a file in `folder`.
Observed observe(std::vector<models::T5Input> inputs, gauge::T5Calibration& calibration, int64_t vocabulary,
                 const fs::path& folder, const std::function<void()>& check) {
  Observed result{.inputs = std::move(inputs), .outputs = {}};
  int64_t rows = 0, first = 0;
  for (const models::T5Input& input : result.inputs) {
    if (input.decoder_input_ids.defined()) rows += input.decoder_input_ids.numel();
  }
  at::Tensor memory;
  if (rows > 0) memory = mapped_logits(folder / "reference_logits", rows, vocabulary);
  for (const models::T5Input& input : result.inputs) {
    check();
    models::T5Output output = calibration.observe(input);
    if (output.logits.defined()) {
      const at::Tensor place = memory.narrow(0, first, input.decoder_input_ids.numel()).view(output.logits.sizes());
      first += input.decoder_input_ids.numel();
      place.copy_(output.logits);
      output.logits = place;
    }
    result.outputs.push_back(std::move(output));
    io::check_mapped_files();
  }
  return result;
}

// Runs what was written, as users will, on the inputs: in FP32 against the source's bits, and in plain FP16. One model
// at a time.
class Verification {
 public:
  Verification(const fs::path& directory, const Observed& source, const std::function<void()>& check) : check_(check) {
    each_output(directory, models::T5Dtype::kFp32, "fp32 gauged", source.inputs, [&](size_t i, const auto& same) {
      const models::T5Output& want = source.outputs[i];
      identical_ = identical_ && at::equal(same.encoder_output, want.encoder_output);
      if (want.logits.defined()) identical_ = identical_ && at::equal(same.logits, want.logits);
    });
    if (!identical_) return;
    each_output(directory, models::T5Dtype::kFp16, "fp16 gauged", source.inputs, [&](size_t i, const auto& narrow) {
      const models::T5Output& want = source.outputs[i];
      encoder_.add(narrow.encoder_output, want.encoder_output);
      finite_ = finite_ && narrow.encoder_output.isfinite().all().template item<bool>();
      if (!want.logits.defined()) return;
      logits_.add(narrow.logits, want.logits);
      finite_ = finite_ && narrow.logits.isfinite().all().template item<bool>();
    });
  }

  bool identical() const { return identical_; }

  void write(json& certificate) const {
    const bool has_logits = !logits_.empty();
    certificate["fp32"] = {{"bit_identical", identical_},
                           {"outputs", has_logits ? json{"encoder_output", "logits"} : json{"encoder_output"}}};
    certificate["fp16"] = {{"finite", finite_}};
    if (!finite_) return;
    certificate["fp16"]["encoder_relative_l2"] = encoder_.value();
    if (has_logits) certificate["fp16"]["logits_relative_l2"] = logits_.value();
  }

 private:
  template <class Use>
  void each_output(const fs::path& directory, models::T5Dtype dtype, const char* run,
                   const std::vector<models::T5Input>& inputs, const Use& use) {
    release_cached_memory();  // of the model before
    models::T5ForConditionalGeneration model = models::load_t5(io::HuggingFaceDirectory(directory), dtype, ignore);
    const watch::AuditedRun audited(run);
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_();
      use(i, t5_output(*model, inputs[i]));
    }
  }

  const std::function<void()>& check_;
  RelativeError encoder_, logits_;
  bool identical_ = true, finite_ = true;
};

}  // namespace

json gauge_t5(const GaugeOptions& options) {
  const at::NoGradGuard no_grad;
  NewDirectory directory(options.out);
  const io::HuggingFaceDirectory source(options.model);
  models::T5Config config;
  Observed observed;
  GaugedRanges ranges;
  {
    models::T5ForConditionalGeneration model = models::load_t5(source, models::T5Dtype::kFp32, ignore);
    config = model->config;
    gauge::T5Calibration calibration(*model);
    {
      const watch::AuditedRun run("fp32");
      observed =
          observe(read_inputs(options, *model), calibration, config.vocab_size, directory.partial(), options.check);
    }
    ranges.values = options.calibrate.empty() ? bounds_of(*model) : calibration.amaxes();
    for (const auto& parameter : model->named_parameters()) {
      ranges.weights.emplace(parameter.key(), gauge::count_exponents(parameter.value()));
    }
  }
  const models::Freedoms freedoms = models::t5_freedoms(config);
  const models::Exponents exponents =
      gauge::search(freedoms, ranges.weights, ranges.values, static_cast<int>(options.headroom_bits));
  write_gauged({.source = source, .config = config, .freedoms = freedoms, .exponents = exponents}, directory.partial());

  options.progress("outputs of the new checkpoint");
  const Verification verification(directory.partial(), observed, options.check);
  io::check_mapped_files();
  if (!verification.identical()) refuse_other_bits(options.model);
  json certificate = describe({.freedoms = freedoms,
                               .exponents = exponents,
                               .source = ranges,
                               .balanced = ranges,
                               .headroom_bits = options.headroom_bits});
  certificate["calibration"] = coverage(options, observed.inputs);
  certificate["layer_norm_epsilon"] = std::ldexp(config.layer_norm_epsilon, 2 * exponents.residual);
  verification.write(certificate);
  certificate["fp32"]["inputs"] = verified_inputs(options.calibrate, kTextTokens);
  io::write_file(directory.partial() / kGaugeCertificate, certificate.dump(2) + "\n");
  options.check();
  directory.commit();
  return certificate;
}

}  // namespace plimsoll::app
