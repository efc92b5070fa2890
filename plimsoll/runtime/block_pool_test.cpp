#include "plimsoll/runtime/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace plimsoll::runtime {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

TEST(BlockPool, GivesTheSameMemoryAgain) {
  BlockPool pool;
  for (int step = 0; step < 10; ++step) {
    void* const a = pool.allocate(3 * kMebibyte);
    void* const b = pool.allocate(5 * kMebibyte);
    std::memset(a, 1, 3 * kMebibyte);
    std::memset(b, 2, 5 * kMebibyte);
    EXPECT_EQ(static_cast<char*>(a)[3 * kMebibyte - 1], 1);
    pool.free(a);
    pool.free(b);
  }
  EXPECT_EQ(pool.statistics().mapped, 2);
}

TEST(BlockPool, BlocksInUseNeverOverlap) {
  BlockPool pool;
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t i = 0; i < 40; ++i) {
    const size_t size = kMebibyte / 4 + i * 70001;
    char* const data = static_cast<char*>(pool.allocate(size));
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    std::memset(data, static_cast<int>(i), size);
    blocks.emplace_back(data, size);
    if (i % 3 == 2) {
      pool.free(blocks[i / 2].first);
      blocks[i / 2].first = nullptr;
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [data, size] = blocks[i];
    if (data == nullptr) continue;
    EXPECT_EQ(data[0], static_cast<char>(i));
    EXPECT_EQ(data[size - 1], static_cast<char>(i));
  }
}

TEST(BlockPool, ASmallBlockTakesAPartOfALargeOne) {
  BlockPool pool;
  pool.free(pool.allocate(64 * kMebibyte));
  void* const small = pool.allocate(kMebibyte);
  void* const rest = pool.allocate(60 * kMebibyte);
  EXPECT_EQ(pool.statistics().mapped, 1);
  EXPECT_LT(pool.statistics().in_use, 62 * kMebibyte);
  EXPECT_LT(pool.statistics().idle, 6 * kMebibyte);
  pool.free(small);
  pool.free(rest);
}

TEST(BlockPool, IdleNeighboursServeALargerBlock) {
  BlockPool pool;
  pool.free(pool.allocate(64 * kMebibyte));
  std::vector<void*> parts;
  for (int i = 0; i < 5; ++i) parts.push_back(pool.allocate(12 * kMebibyte));
  for (const int i : {1, 4, 0, 3, 2}) pool.free(parts[static_cast<size_t>(i)]);
  pool.free(pool.allocate(64 * kMebibyte));
  EXPECT_EQ(pool.statistics().mapped, 1);
}

TEST(BlockPool, WhatLiesIdleIsBounded) {
  BlockPool pool;
  for (size_t i = 1; i <= 100; ++i) pool.free(pool.allocate(i * 4 * kMebibyte));
  const BlockPool::Statistics seen = pool.statistics();
  EXPECT_EQ(seen.in_use, 0u);
  EXPECT_LE(seen.idle, seen.peak + std::max(seen.peak / 16, 64 * kMebibyte));
  pool.release_idle();
  EXPECT_EQ(pool.statistics().idle, 0u);
}

TEST(BlockPool, SaysNoWhenTheSystemHasNoMemory) {
  BlockPool pool;
  void* const kept = pool.allocate(kMebibyte);
  EXPECT_EQ(pool.allocate(size_t{1} << 60), nullptr);
  EXPECT_EQ(pool.allocate(SIZE_MAX), nullptr);
  EXPECT_TRUE(pool.owns(kept));
  pool.free(kept);
  EXPECT_FALSE(pool.owns(kept));
}

TEST(BlockPool, ManyThreadsShareIt) {
  BlockPool pool;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&pool, thread] {
      for (size_t i = 0; i < 200; ++i) {
        const size_t size = kMebibyte / 2 + i % 7 * 100000;
        char* const data = static_cast<char*>(pool.allocate(size));
        data[0] = data[size - 1] = static_cast<char>(thread);
        EXPECT_EQ(data[0], static_cast<char>(thread));
        EXPECT_EQ(data[size - 1], static_cast<char>(thread));
        pool.free(data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.statistics().in_use, 0u);
}

}  // namespace
}  // namespace plimsoll::runtime
