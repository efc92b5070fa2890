// The key that a server asks for.
#pragma once

#include <string>

namespace plimsoll::serve {

class AccessKey {
 public:
  // An empty key lets everybody in.
  explicit AccessKey(const std::string& key);

  // Whether a request with this header Authorization ("Bearer KEY"; empty: none) comes in. The time that it takes does not tell
  // how much of the key is right.
  bool lets_in(const std::string& authorization) const;

 private:
  std::string digest_;  // empty: everybody
};

}  // namespace plimsoll::serve
