#include "plimsoll/serve/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "plimsoll/models/token_pages.h"

namespace plimsoll::serve {
namespace {

using models::kPageTokens;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Consecutive tokens that fill so many pages.
std::vector<int64_t> tokens_of(int64_t from, int64_t pages) {
  std::vector<int64_t> tokens(static_cast<size_t>(pages * kPageTokens));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

// Takes and names the pages of a text.
std::vector<int32_t> read(PagePool& pool, std::span<const int64_t> tokens, int64_t start = 0) {
  std::vector<int32_t> pages;
  for (int64_t prefix = start; !tokens.empty(); tokens = tokens.subspan(kPageTokens)) {
    pages.push_back(pool.take());
    prefix = pool.name(pages.back(), prefix, tokens.first(kPageTokens));
  }
  return pages;
}

void give_back(PagePool& pool, std::vector<int32_t> pages) {
  for (; !pages.empty(); pages.pop_back()) pool.give_back(pages.back());
}

// The pages of the longest text that begins like this one.
std::vector<int32_t> found(const PagePool& pool, std::span<const int64_t> tokens, int64_t start = 0) {
  std::vector<int32_t> pages;
  for (int64_t prefix = start; std::ssize(tokens) >= kPageTokens; tokens = tokens.subspan(kPageTokens)) {
    const auto named = pool.find(prefix, tokens.first(kPageTokens));
    if (!named) break;
    pages.push_back(named->page);
    prefix = named->prefix;
  }
  return pages;
}

TEST(PagePool, FindsTheFullPagesThatATextBeginsWith) {
  PagePool pool(8);
  const std::vector<int64_t> text = tokens_of(0, 3);
  const std::vector<int32_t> pages = read(pool, text);
  EXPECT_EQ(found(pool, text), pages);
  EXPECT_THAT(found(pool, std::span(text).first(3 * kPageTokens - 1)), ElementsAre(pages[0], pages[1]));
  EXPECT_THAT(found(pool, std::span(text).first(kPageTokens - 1)), IsEmpty());
  EXPECT_THAT(found(pool, std::span(text).subspan(kPageTokens)), IsEmpty()) << "after other tokens";
  std::vector<int64_t> other = text;
  other[kPageTokens + 5] += 1;
  EXPECT_THAT(found(pool, other), ElementsAre(pages[0]));
}

TEST(PagePool, TextsThatBeginWithAnotherNumberShareNoPages) {
  PagePool pool(8);
  const std::vector<int64_t> text = tokens_of(0, 2);
  const std::vector<int32_t> pages = read(pool, text), others = read(pool, text, -1);
  EXPECT_EQ(found(pool, text), pages);
  EXPECT_EQ(found(pool, text, -1), others);
  EXPECT_THAT(found(pool, text, -2), IsEmpty());
  give_back(pool, pages);
  EXPECT_EQ(found(pool, text), pages);
  EXPECT_EQ(found(pool, text, -1), others);
}

TEST(PagePool, ANameMayHaveAnyNumberOfTokens) {
  PagePool pool(8);
  const std::vector<int64_t> prompt = tokens_of(0, 2), other = tokens_of(0, 3);
  const int32_t first = pool.take(), second = pool.take();
  const int64_t prefix = pool.name(first, 0, prompt), end = pool.name(second, prefix, {});
  EXPECT_EQ(pool.find(0, prompt)->page, first);
  EXPECT_EQ(pool.find(prefix, {})->page, second);
  EXPECT_EQ(pool.find(prefix, {})->prefix, end);
  EXPECT_FALSE(pool.find(0, other) || pool.find(end, {}) || pool.find(0, std::span(prompt).first(kPageTokens)));
}

TEST(PagePool, APageIsFreeWhenItsLastOwnerGivesItBackAndFoundAfterThat) {
  PagePool pool(4);
  const std::vector<int64_t> text = tokens_of(0, 2);
  const std::vector<int32_t> pages = read(pool, text);
  for (const int32_t page : pages) pool.take(page);
  give_back(pool, pages);
  EXPECT_EQ(pool.free(), 2);
  EXPECT_EQ(pool.kept(), 0);
  give_back(pool, pages);
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.kept(), 2);
  EXPECT_EQ(found(pool, text), pages);
  pool.take(pages[0]);
  EXPECT_EQ(pool.free(), 3);
  EXPECT_EQ(pool.kept(), 1);
}

TEST(PagePool, PagesWithoutANameGoFirstAndThenTheOneGivenBackLongestAgo) {
  PagePool pool(5);
  const std::vector<int64_t> first = tokens_of(0, 2), second = tokens_of(1000, 2);
  const std::vector<int32_t> of_first = read(pool, first), of_second = read(pool, second);
  const int32_t unnamed = pool.take();
  give_back(pool, of_second);
  give_back(pool, of_first);
  pool.give_back(unnamed);
  EXPECT_EQ(pool.take(), unnamed);
  EXPECT_EQ(pool.take(), of_second[1]);
  EXPECT_THAT(found(pool, second), ElementsAre(of_second[0]));
  EXPECT_EQ(pool.take(), of_second[0]);
  EXPECT_THAT(found(pool, second), IsEmpty());
  EXPECT_EQ(found(pool, first), of_first);
  pool.take(of_first[1]);  // used again
  pool.give_back(of_first[1]);
  EXPECT_EQ(pool.take(), of_first[0]);
  EXPECT_THAT(found(pool, first), IsEmpty()) << "what follows a forgotten page is not found";
  EXPECT_EQ(pool.take(), of_first[1]);
  EXPECT_EQ(pool.free(), 0);
}

TEST(PagePool, TheFirstOfTwoPagesWithTheSameTokensIsFound) {
  PagePool pool(6);
  const std::vector<int64_t> text = tokens_of(0, 1), longer = tokens_of(0, 2);
  const std::vector<int32_t> first = read(pool, text), second = read(pool, longer);
  EXPECT_THAT(found(pool, longer), ElementsAre(first[0], second[1]));
  give_back(pool, second);
  EXPECT_EQ(pool.kept(), 1);
  EXPECT_EQ(pool.take(), second[0]) << "it has no name";
}

}  // namespace
}  // namespace plimsoll::serve
