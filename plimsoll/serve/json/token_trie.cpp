#include "plimsoll/serve/json/token_trie.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace plimsoll::serve {

TokenTrie::TokenTrie(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  for (uint32_t id = 0; id < tokens_.size(); ++id) {
    std::string& token = tokens_[id];
    if (token.size() > std::numeric_limits<uint16_t>::max()) token.clear();
    if (token.empty()) continue;
    ids_.push_back(id);
    longest_ = std::max(longest_, static_cast<int32_t>(token.size()));
    if (token.size() == 1) single_bytes_.set(static_cast<uint8_t>(token[0]));
  }
  std::ranges::sort(ids_, {}, [&](uint32_t id) { return std::pair<const std::string&, uint32_t>(tokens_[id], id); });
  std::vector<uint32_t> path;  // nodes of the bytes of the token before
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  for (uint32_t i = 0; i < ids_.size(); ++i) {
    const std::string& token = tokens_[ids_[i]];
    const auto same = [&](size_t depth) { return nodes_[path[depth]].byte == static_cast<uint8_t>(token[depth]); };
    size_t common = 0;
    while (common < path.size() && common < token.size() && same(common)) ++common;
    leave(common);
    for (size_t depth = common; depth < token.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {.byte = static_cast<uint8_t>(token[depth]), .depth = static_cast<uint16_t>(depth + 1), .end = 0});
    }
    Node& node = nodes_[path.back()];
    if (node.ids++ == 0) node.first_id = i;
  }
  leave(0);
}

}  // namespace plimsoll::serve
