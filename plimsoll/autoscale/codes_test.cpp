#include "plimsoll/autoscale/codes.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

constexpr int kWeights = 400, kThreads = 4;

// Each thread may be the first that asks for the codes of a weight, and gets the same ones.
TEST(Codes, ThreadsShareThoseOfAWeight) {
  const auto session = std::make_shared<Session>(
      Settings{.product_values = ProductFormat::kE4m3, .product_gradients = ProductFormat::kE4m3});
  const at::Tensor x = as_scaled(at::randn({4, 16}), session), values = at::randn({16, 16});
  const at::Tensor expected = value_of(at::mm(x, as_scaled(values, session)));
  std::vector<at::Tensor> weights;
  for (int i = 0; i < kWeights; ++i) weights.push_back(as_scaled(values, session));
  std::atomic<int> ready = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      const at::NoGradGuard no_grad;
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      for (const at::Tensor& weight : weights) wrong += at::equal(value_of(at::mm(x, weight)), expected) ? 0 : 1;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (const at::Tensor& weight : weights) EXPECT_TRUE(scaled_impl(weight).shared().codes.data.defined());
}

}  // namespace
}  // namespace plimsoll::autoscale
