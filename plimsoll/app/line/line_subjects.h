// Kinds of models that `plimsoll line` takes.
#pragma once

#include <memory>

#include "plimsoll/app/line/line.h"
#include "plimsoll/app/line/line_model.h"

namespace plimsoll::app {

// A decoder's samples are windows of a text.
std::unique_ptr<LineSubject> decoder_line(const LineOptions& options);
// A T5's are examples (T5Texts::read_examples), each with its target, or else with the text that FP32 writes. FP16 is run
// with the fixes of the seed, of a gauged model with none. Throws UsageError for an encoder alone and for --context.
std::unique_ptr<LineSubject> t5_line(const LineOptions& options);

}  // namespace plimsoll::app
