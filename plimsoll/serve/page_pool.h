// The pages of keys and values, and how many texts have each. A full page is named by its tokens and the page before it,
// so that a text that begins like another finds its pages; one that nobody has any more is found until its memory is
// needed. Only name() needs memory of the system, and without it throws std::bad_alloc and changes nothing.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace plimsoll::serve {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }  // pages that nobody has
  int64_t kept() const { return kept_; }                               // of these, the ones that can be found

  // A full page, and the tokens up to its end as a number. 0 and less stand for no tokens: texts have pages in common
  // only if they begin with the same such number.
  struct Named {
    int32_t page;
    int64_t prefix;
  };
  // The page whose tokens follow a prefix.
  std::optional<Named> find(int64_t prefix, std::span<const int64_t> tokens) const;
  // Names a page that the caller has: its tokens follow a prefix. Returns the prefix with them. If another page has the
  // name, it goes on to have it.
  int64_t name(int32_t page, int64_t prefix, std::span<const int64_t> tokens);

  // A free page, of which there must be one: without a name if there is such a one, or else the one that was given back
  // longest ago, which loses its name.
  int32_t take();
  void take(int32_t page);  // one that was found: several may have it
  void give_back(int32_t page);

 private:
  using Name = std::pair<int64_t, std::vector<int64_t>>;  // prefix and tokens
  using Names = std::map<Name, Named>;
  struct Page {
    int64_t owners = 0;
    std::optional<Names::iterator> name;
    std::list<int32_t>::iterator place;  // in free_, if nobody has it, or else in taken_
  };
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }

  std::vector<Page> pages_;
  std::list<int32_t> free_;   // in the order in which they are taken
  std::list<int32_t> taken_;  // in any order: a page goes from list to list without new memory
  Names names_;
  int64_t kept_ = 0, prefixes_ = 0;
};

}  // namespace plimsoll::serve
