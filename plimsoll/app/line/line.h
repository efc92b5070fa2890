// `plimsoll line` as a function: how far a decoder or a T5 may be loaded. It measures each format on a text, gauges the
// model where FP16 fails, plans which products codes must spare, and writes a model that has been judged on text held out.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "plimsoll/models/overflowed_weights.h"
#include "plimsoll/models/weight_dtype.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::app {

inline constexpr std::array<recipe::Named<models::WeightDtype>, 3> kLineCodes = {
    {{"fp8", models::WeightDtype::kFp8},
     {"nvfp4", models::WeightDtype::kNvfp4},
     {"mxfp4", models::WeightDtype::kMxfp4}}};

struct LineOptions {
  std::filesystem::path model;                            // a Hugging Face directory of a decoder or a T5
  std::filesystem::path data;                             // a text; of a T5 T5Texts::read_examples
  std::filesystem::path out;                              // the directory to make; must not exist
  double max_kl = 0.01;                                   // nats, that a format may cost in the mean
  models::WeightDtype codes = models::WeightDtype::kFp8;  // of kLineCodes: those that the plan is for
  std::optional<int64_t> context = {};                    // TokenWindowOptions; not of a T5
  int64_t tokens = 8192;      // of the text, or of a T5's targets, of which two are read always, at most
  int64_t measurements = 64;  // PlanSearch::most_measurements, and GaugeOptions::measurements
  models::Warn warn = {};
  std::function<void(const std::string& what)> progress = [](const std::string&) {};  // what begins
};

inline constexpr const char* kLineFile = "plimsoll_line.json";

// The model in `out` is the source's function: the same weights, or where FP16 fails those that gauge writes. Its
// config.json has the plan, so that codes spare the same products wherever it is read. Returns what is written to
// plimsoll_line.json there:
//   model, data, data_sha256, max_kl, codes (their name), tokens {search, held_out},
//   formats {bf16, fp16, "fp16 gauged", fp8, nvfp4, mxfp4, and of the codes "fp8 planned"}: those measured; TokenComparison::result() on the text held
//     out, with bytes_per_weight, search_kl (the mean on the text to search with) and holds: finite, and logits_kl at most
//     max_kl,
//   gauge: null, or its file (certificate) or why there is none (error),
//   plan {high_precision [names], narrow_share (of the weights in products), measurements, search_kl,
//     search_standard_error, is_within}: null where the codes needed none on the text to search with,
//   products [{name, weights, kl_alone, high_precision}] in the model's order: of a plan; else empty. A T5's weights that
//     read the same values have codes together: kl_alone is that of all of them,
//   values: value_rows() of the source.
// Numbers that are not finite are null. Throws UsageError, Error or io::Error, and writes nothing then.
nlohmann::json draw_line(const LineOptions& options);

}  // namespace plimsoll::app
