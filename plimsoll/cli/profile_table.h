// A profile as a user reads it.
#pragma once

#include <string>

#include "plimsoll/app/train/step_profile.h"

namespace plimsoll::cli {

std::string profile_text(const app::ProfileReport& report);

}  // namespace plimsoll::cli
