// The page at /: one file of HTML without outside resources.
#pragma once

namespace plimsoll::serve {

extern const char kPage[];

}  // namespace plimsoll::serve
