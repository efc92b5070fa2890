#include "plimsoll/shard/communicator/gather_texts.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "plimsoll/io/error.h"

namespace plimsoll::shard {
namespace {

constexpr char kDone = '+', kFailed = '-';

}  // namespace

std::vector<at::Tensor> gather_bytes(const Communicator& ranks, const at::Tensor& mine, std::optional<int64_t> to) {
  const at::Tensor lengths = ranks.all_gather(at::tensor({mine.numel()}, at::kLong));
  at::Tensor padded = at::zeros({lengths.max().item<int64_t>()}, at::kByte);
  padded.narrow(0, 0, mine.numel()).copy_(mine);
  const at::Tensor all = to ? ranks.start_collect(padded, *to).take() : ranks.all_gather(padded);
  std::vector<at::Tensor> result;
  if (to && *to != ranks.rank()) return result;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    result.push_back(all.narrow(0, rank * padded.numel(), lengths[rank].item<int64_t>()));
  }
  return result;
}

std::vector<std::string> gather_texts(const ops::RankGroup& ranks, std::string_view mine) {
  const at::Tensor lengths = ranks.all_gather(at::tensor({static_cast<int64_t>(mine.size())}, at::kLong));
  const int64_t longest = lengths.max().item<int64_t>();
  at::Tensor padded = at::zeros({longest}, at::kByte);
  if (!mine.empty()) std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = ranks.all_gather(padded).contiguous();
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const char* const begin = static_cast<const char*>(all.const_data_ptr()) + rank * longest;
    texts.emplace_back(begin, static_cast<size_t>(lengths[rank].item<int64_t>()));
  }
  return texts;
}

std::vector<std::string> on_all(const ops::RankGroup& ranks, const std::function<std::string()>& body) {
  std::string mine;
  try {
    mine = kDone + body();
  } catch (const std::exception& error) {
    mine = kFailed + std::string(error.what());
  }
  std::vector<std::string> texts = gather_texts(ranks, mine);
  for (std::string& text : texts) {
    if (text.front() == kFailed) throw io::Error(text.substr(1));
    text.erase(0, 1);
  }
  return texts;
}

}  // namespace plimsoll::shard
