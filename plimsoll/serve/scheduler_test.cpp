#include "plimsoll/serve/scheduler.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <numeric>

#include "plimsoll/serve/memory_testing.h"

namespace plimsoll::serve {
namespace {

using models::TextEnd;
using ::testing::ElementsAre;
using Ids = std::vector<int64_t>;

// A prompt of consecutive ids.
Ids ids(int64_t from, int64_t count) {
  Ids result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), from);
  return result;
}

class SchedulerTest : public ::testing::Test {
 protected:
  Scheduler make(int64_t pages, int64_t max_batch = 8, std::optional<int64_t> decoder_start = {}) {
    models::TokenCache like(1, {.capacity = 1});
    like.layer(0).append(at::zeros({1, 1, 1, 1}), at::zeros({1, 1, 1, 1}));
    return Scheduler({.max_batch = max_batch, .pages = pages, .decoder_start = decoder_start},
                     models::TokenPages(like, pages));
  }

  std::shared_ptr<Reply> add(Scheduler& scheduler, Ids prompt) {
    auto reply = std::make_shared<Reply>();
    scheduler.add({.prompt = std::move(prompt), .max_new_tokens = 1000}, reply);
    return reply;
  }

  // Takes a step as a model would: the texts that have been read write token 7. Returns each part's first id and tokens.
  std::vector<std::pair<int64_t, int64_t>> step(Scheduler& scheduler) {
    std::vector<std::pair<int64_t, int64_t>> parts;
    for (const auto& [text, tokens] : scheduler.plan()) {
      parts.emplace_back(text->text.front(), tokens);
      text->cache.layer(0).grow(tokens);
      if (text->unread() == 0) text->text.push_back(7);
      last_ = text;
    }
    return parts;
  }

  ServedText* last_ = nullptr;
};

using Parts = std::vector<std::pair<int64_t, int64_t>>;

TEST_F(SchedulerTest, PromptsAreReadInChunksBesideTextsThatWrite) {
  Scheduler scheduler = make(100);
  add(scheduler, ids(100, 10));
  EXPECT_EQ(step(scheduler), (Parts{{100, 10}}));
  add(scheduler, ids(200, 150));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 63}}));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 63}}));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 24}}));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 1}}));
}

TEST_F(SchedulerTest, APromptWithoutTextsThatWriteIsReadInLargePieces) {
  Scheduler scheduler = make(100);
  add(scheduler, ids(100, 600));
  add(scheduler, ids(1000, 20));
  EXPECT_EQ(step(scheduler), (Parts{{100, 512}}));
  EXPECT_EQ(step(scheduler), (Parts{{100, 88}}));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {1000, 20}}));
}

TEST_F(SchedulerTest, TheBatchIsNoLargerThanItsLimit) {
  Scheduler scheduler = make(100, /*max_batch=*/2);
  for (int64_t i = 1; i <= 3; ++i) add(scheduler, ids(100 * i, 1));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 1}}));
  EXPECT_EQ(scheduler.counts().waiting, 1);
  scheduler.end(*last_);
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {300, 1}}));
}

TEST_F(SchedulerTest, WithoutFreePagesTheNewestTextGoesBackAndIsReadAgain) {
  Scheduler scheduler = make(4);
  add(scheduler, ids(100, 60));
  step(scheduler);  // two pages
  add(scheduler, ids(200, 25));
  step(scheduler);  // one more
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(scheduler).size(), 2U);
  EXPECT_EQ(scheduler.counts().used_pages, 3) << "the first has 64 tokens";
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 1}}));
  EXPECT_EQ(scheduler.counts().used_pages, 4);
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}})) << "the second would need another page";
  EXPECT_EQ(scheduler.counts().put_back, 1);
  EXPECT_EQ(scheduler.counts().waiting, 1);
  scheduler.end(*last_);
  EXPECT_EQ(step(scheduler), (Parts{{200, 1}})) << "nothing else has needed its full page meanwhile";
}

TEST_F(SchedulerTest, ATextThatWentBackIsReadAgainWhereItsPagesWereNeeded) {
  Scheduler scheduler = make(4);
  add(scheduler, ids(100, 60));
  step(scheduler);
  add(scheduler, ids(200, 25));
  step(scheduler);
  for (int i = 0; i < 36; ++i) step(scheduler);
  EXPECT_EQ(scheduler.counts().put_back, 1);
  EXPECT_EQ(scheduler.counts().used_pages, 4) << "the first has all of them";
  scheduler.end(*last_);
  EXPECT_EQ(step(scheduler), (Parts{{200, 33}})) << "its prompt and the tokens that it had written";
}

TEST_F(SchedulerTest, ATextThatBeginsLikeOneThatEndedReadsTheRestAlone) {
  Scheduler scheduler = make(100);
  add(scheduler, ids(100, 50));
  step(scheduler);
  scheduler.end(*last_);
  EXPECT_EQ(scheduler.counts().kept_pages, 1) << "the full one";
  add(scheduler, ids(100, 80));
  EXPECT_EQ(step(scheduler), (Parts{{100, 48}}));
  add(scheduler, ids(100, 64));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {100, 32}})) << "the last token's logits are wanted";
  EXPECT_EQ(scheduler.counts().shared_tokens, 32 + 32);
  EXPECT_EQ(scheduler.counts().used_pages, 3 + 2) << "the first page is that of both";
}

TEST_F(SchedulerTest, ATextWaitsForTheOneThatReadsTheSamePrompt) {
  Scheduler scheduler = make(100);
  for (int i = 0; i < 3; ++i) add(scheduler, ids(100, 600));
  EXPECT_EQ(step(scheduler), (Parts{{100, 512}}));
  EXPECT_EQ(step(scheduler), (Parts{{100, 88}}));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {100, 24}, {100, 24}}));
  EXPECT_EQ(scheduler.counts().read_tokens, 600 + 24 + 24);
}

TEST_F(SchedulerTest, KeptPagesAreForgottenBeforeATextGoesBack) {
  Scheduler scheduler = make(4);
  add(scheduler, ids(100, 60));
  step(scheduler);
  scheduler.end(*last_);
  add(scheduler, ids(200, 90));
  EXPECT_EQ(step(scheduler), (Parts{{200, 90}}));
  EXPECT_EQ(scheduler.counts().kept_pages, 1) << "three others are free";
  scheduler.end(*last_);
  add(scheduler, ids(300, 100));
  EXPECT_EQ(step(scheduler), (Parts{{300, 100}}));
  EXPECT_EQ(scheduler.counts().kept_pages, 0);
  EXPECT_EQ(scheduler.counts().used_pages, 4);
}

TEST_F(SchedulerTest, KeptPagesAreThoseOfATextThatNeedsAllOfThem) {
  Scheduler scheduler = make(4);
  add(scheduler, ids(100, 60));
  step(scheduler);
  scheduler.end(*last_);
  add(scheduler, ids(100, 100));
  EXPECT_EQ(step(scheduler), (Parts{{100, 68}}));
  EXPECT_EQ(scheduler.counts().used_pages, 4);
}

TEST_F(SchedulerTest, AFewTokensInCommonAreReadAgain) {
  Scheduler scheduler = make(4);
  add(scheduler, ids(100, 60));
  step(scheduler);
  scheduler.end(*last_);
  Ids prompt = ids(100, 10);
  for (const int64_t id : ids(500, 90)) prompt.push_back(id);
  add(scheduler, prompt);
  EXPECT_EQ(step(scheduler), (Parts{{100, 100}}));
  EXPECT_EQ(scheduler.counts().shared_tokens, 0);
  EXPECT_EQ(scheduler.counts().kept_pages, 0) << "all pages are the new text's";
}

TEST_F(SchedulerTest, CancelledRequestsGoBeforeTheNextStep) {
  Scheduler scheduler = make(100, /*max_batch=*/1);
  const auto first = add(scheduler, ids(100, 5)), second = add(scheduler, ids(200, 5)),
             third = add(scheduler, ids(300, 5));
  step(scheduler);
  first->cancel();
  second->cancel();
  EXPECT_EQ(step(scheduler), (Parts{{300, 5}}));
  for (const auto& reply : {first, second}) {
    EXPECT_FALSE(reply->next());
    EXPECT_EQ(reply->end(), TextEnd::kInterrupted);
  }
  EXPECT_EQ(scheduler.counts().used_pages, 1);
}

TEST_F(SchedulerTest, AfterAStepWithoutMemoryTheNewestWaitsUntilAnotherHasEnded) {
  Scheduler scheduler = make(100);
  for (int64_t i = 1; i <= 4; ++i) add(scheduler, ids(100 * i, 1));
  EXPECT_EQ(step(scheduler).size(), 4U);
  for (size_t left = 3; left >= 2; --left) {
    scheduler.retreat(scheduler.plan(), "no memory");
    EXPECT_EQ(step(scheduler).size(), left);
  }
  EXPECT_EQ(scheduler.counts().put_back, 2);
  scheduler.end(*last_);
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {300, 3}, {400, 2}})) << "with one more than before, read again";
  scheduler.retreat(scheduler.plan(), "no memory");
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {300, 1}}));
}

TEST_F(SchedulerTest, ATextThatIsAloneInAStepWithoutMemoryEnds) {
  Scheduler scheduler = make(100);
  const auto first = add(scheduler, ids(100, 600)), second = add(scheduler, ids(1000, 600));
  scheduler.retreat(scheduler.plan(), "no memory");
  EXPECT_FALSE(first->next());
  EXPECT_EQ(first->error(), "no memory");
  EXPECT_EQ(step(scheduler), (Parts{{1000, 512}}));
  EXPECT_EQ(second->error(), "");
}

// Each allocation of a plan fails in turn, in one that begins texts with pages in common, lets others grow and names pages.
TEST_F(SchedulerTest, APlanForWhichMemoryIsLackingOnceLosesNoPageAndEndsNoText) {
  int64_t before = 0;
  for (bool failed = true; failed; ++before) {
    SCOPED_TRACE(before);
    Scheduler scheduler = make(100);
    std::vector<std::shared_ptr<Reply>> replies;
    replies.push_back(add(scheduler, ids(100, 64)));
    replies.push_back(add(scheduler, ids(300, 32)));
    step(scheduler);
    step(scheduler);
    replies.push_back(add(scheduler, ids(100, 50)));
    replies.push_back(add(scheduler, ids(500, 40)));
    try {
      const testing::FailingAllocation failing(before);
      scheduler.plan();
    } catch (const std::exception&) {
      scheduler.retreat("no memory");
    }
    failed = testing::FailingAllocation::has_failed();
    for (int64_t steps = 0; scheduler.counts().running + scheduler.counts().waiting > 0; ++steps) {
      ASSERT_LT(steps, 100);
      ASSERT_FALSE(step(scheduler).empty());
      if (last_->new_tokens() > 5) scheduler.end(*last_);
    }
    ASSERT_EQ(scheduler.counts().used_pages, scheduler.counts().kept_pages);
    for (const auto& reply : replies) EXPECT_EQ(reply->error(), "");
  }
  EXPECT_GT(before, 10);
}

TEST_F(SchedulerTest, ATextThatIsAloneInAPlanWithoutMemoryEnds) {
  Scheduler scheduler = make(100);
  const auto first = add(scheduler, ids(100, 10)), second = add(scheduler, ids(200, 10));
  step(scheduler);
  step(scheduler);
  EXPECT_EQ(scheduler.counts().running, 2);
  scheduler.retreat("no memory");
  EXPECT_EQ(scheduler.counts().running, 1);
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}})) << "alone";
  scheduler.retreat("no memory");
  EXPECT_EQ(first->error(), "no memory");
  EXPECT_EQ(scheduler.counts().running + scheduler.counts().waiting, 1);
  for (int i = 0; i < 3; ++i) scheduler.retreat("still none");
  EXPECT_EQ(second->error(), "still none") << "though it has not begun";
  EXPECT_TRUE(scheduler.plan().empty());
}

TEST_F(SchedulerTest, AnEncoderReadsAPromptWholeAndADecoderBeginsAtTheNextPage) {
  Scheduler scheduler = make(100, 8, /*decoder_start=*/3);
  add(scheduler, ids(100, 10));
  EXPECT_EQ(step(scheduler), (Parts{{100, 33}}));
  EXPECT_THAT(last_->continued(), ElementsAre(3, 7));
  EXPECT_EQ(last_->new_tokens(), 1);
  EXPECT_EQ(last_->encoder_tokens, 10);
  add(scheduler, ids(200, 150));
  add(scheduler, ids(200, 140));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 161}})) << "one of the two prompts, with its 160 places";
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {200, 1}, {200, 161}})) << "all of a prompt changes all of its keys";
  EXPECT_EQ(scheduler.counts().shared_tokens, 0);
  EXPECT_EQ(scheduler.counts().read_tokens, 11 + 151 + 141);
  EXPECT_EQ(scheduler.counts().used_pages, 2 + 2 * 6);
  scheduler.end(*last_);
  EXPECT_EQ(scheduler.counts().used_pages, 2 + 6 + 5);
  EXPECT_EQ(scheduler.counts().kept_pages, 5) << "those of the encoder";
}

TEST_F(SchedulerTest, AnEncoderReadsEqualPromptsOnce) {
  Scheduler scheduler = make(100, 8, /*decoder_start=*/3);
  for (int i = 0; i < 3; ++i) add(scheduler, ids(100, 150));
  EXPECT_EQ(step(scheduler), (Parts{{100, 161}})) << "the others wait for it";
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {100, 1}, {100, 1}})) << "the token that a decoder begins with";
  EXPECT_THAT(last_->continued(), ElementsAre(3, 7));
  EXPECT_EQ(scheduler.counts().read_tokens, 151 + 2);
  EXPECT_EQ(scheduler.counts().shared_tokens, 2 * 150);
  EXPECT_EQ(scheduler.counts().used_pages, 5 + 3);
  for (int i = 0; i < 3; ++i) {
    scheduler.end(*last_);
    step(scheduler);
  }
  EXPECT_EQ(scheduler.counts().running, 0);
  EXPECT_EQ(scheduler.counts().used_pages, 5);
  EXPECT_EQ(scheduler.counts().kept_pages, 5);
  add(scheduler, ids(100, 150));
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}})) << "the pages are found after all texts have ended";
}

TEST_F(SchedulerTest, APromptOfWhichSomePagesWereForgottenIsEncodedIntoThePagesThatAreLeft) {
  Scheduler scheduler = make(7, 8, /*decoder_start=*/3);
  add(scheduler, ids(100, 100));
  step(scheduler);
  scheduler.end(*last_);
  EXPECT_EQ(scheduler.counts().kept_pages, 4);
  add(scheduler, ids(300, 100));
  step(scheduler);
  EXPECT_EQ(scheduler.counts().kept_pages, 2) << "it has the three others and two of the four";
  scheduler.end(*last_);
  add(scheduler, ids(100, 100));
  add(scheduler, ids(100, 100));
  EXPECT_EQ(step(scheduler), (Parts{{100, 129}}));
  EXPECT_EQ(scheduler.counts().shared_tokens, 0);
  EXPECT_EQ(scheduler.counts().waiting, 1) << "until it has been encoded";
  EXPECT_EQ(step(scheduler), (Parts{{100, 1}, {100, 1}}));
  EXPECT_EQ(scheduler.counts().shared_tokens, 100);
  EXPECT_EQ(scheduler.counts().used_pages - scheduler.counts().kept_pages, 4 + 2);
}

TEST_F(SchedulerTest, ATextOfAnEncoderThatWasPutBackIsReadAgainWithWhatItHasWritten) {
  Scheduler scheduler = make(5, 8, /*decoder_start=*/3);
  const auto first = add(scheduler, ids(100, 10));
  add(scheduler, ids(200, 10));
  step(scheduler);
  step(scheduler);
  for (int i = 0; i < 40; ++i) step(scheduler);
  EXPECT_EQ(scheduler.counts().put_back, 1);
  EXPECT_EQ(scheduler.counts().waiting, 1);
  first->cancel();
  const Parts parts = step(scheduler);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0], std::pair(int64_t{200}, int64_t{1})) << "its prompt and its decoder's full page are still there";
  EXPECT_EQ(scheduler.counts().shared_tokens, 10 + 32);
}

TEST_F(SchedulerTest, ATextWhoseEncodersPagesWereNeededIsEncodedAgain) {
  Scheduler scheduler = make(5, 8, /*decoder_start=*/3);
  const auto first = add(scheduler, ids(100, 10));
  add(scheduler, ids(200, 10));
  for (int i = 0; i < 100; ++i) step(scheduler);
  EXPECT_EQ(scheduler.counts().put_back, 1);
  EXPECT_EQ(scheduler.counts().used_pages, 5) << "the first has all of them";
  EXPECT_EQ(scheduler.counts().kept_pages, 0);
  first->cancel();
  const Parts parts = step(scheduler);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0], std::pair(int64_t{200}, 32 + last_->new_tokens()));
  EXPECT_EQ(scheduler.counts().shared_tokens, 0);
}

}  // namespace
}  // namespace plimsoll::serve
