// The place where a request ends, without which its body would be taken for the next request on the connection.
#pragma once

#include <httplib.h>

namespace plimsoll::serve {

// Reason why nobody can tell where the body ends (RFC 9112, 6.3); null: it can be told.
const char* why_endless(const httplib::Headers& headers);

bool has_body(const httplib::Request& request);

// Whether httplib reads the body of such a request; of others it leaves one on the connection.
bool reads_body(const httplib::Request& request);

}  // namespace plimsoll::serve
