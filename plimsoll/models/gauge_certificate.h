// The file of a directory by which a model is known to have been through `plimsoll gauge`.
#pragma once

namespace plimsoll::models {

inline constexpr const char* kGaugeCertificate = "plimsoll_gauge.json";

}  // namespace plimsoll::models
