// The bytes of a vocabulary's tokens, as a tree: tokens that begin alike are looked at together.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace plimsoll::serve {

class TokenTrie {
 public:
  // tokens: by their ids. One without bytes has no place in the tree.
  explicit TokenTrie(std::vector<std::string> tokens);

  // One more byte. Nodes stand in the order in which a walk from the root comes to them.
  struct Node {
    uint8_t byte;
    uint16_t depth;                  // bytes to here
    uint32_t end;                    // the node behind all that begin so
    uint32_t first_id = 0, ids = 0;  // of the tokens that end here
  };
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const uint32_t> ids(const Node& node) const { return std::span(ids_).subspan(node.first_id, node.ids); }

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& bytes(int64_t id) const { return tokens_[static_cast<size_t>(id)]; }
  int32_t longest() const { return longest_; }  // bytes
  // Bytes that are a token by themselves.
  const std::bitset<256>& single_bytes() const { return single_bytes_; }

 private:
  std::vector<std::string> tokens_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> ids_;  // in the order of their bytes
  int32_t longest_ = 0;
  std::bitset<256> single_bytes_;
};

}  // namespace plimsoll::serve
