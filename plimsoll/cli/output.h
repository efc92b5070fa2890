// Texts on standard output. What cannot be written is an app::Error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll::cli {

// Shown at once.
void write_text(std::string_view text);
void write_line(std::string_view text);
// All until now: most commands write to a buffer of the C library.
void expect_all_written();

// Text that a model wrote or a data file holds, to be written: as it is, or for a terminal with its control characters
// spelled, such as \x1b, so that none moves the cursor or changes colours. Newlines and tabs stay.
std::string harmless(std::string_view text);

// "1 token", "2 tokens". several: where that is not `one` with an s.
std::string counted(int64_t count, std::string_view one, std::string_view several = {});

// A loss with four digits behind the point: "nan" has no sign, though the processor's own has one.
std::string loss_text(double loss);

}  // namespace plimsoll::cli
