// A chat with a decoder-only model: example_chat DIRECTORY. Each line of input is a message, and the end of the input ends the
// chat. Always the likeliest token is said; nn::sample has temperature, top_k and top_p.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <iostream>
#include <stdexcept>

#include "plimsoll/models/load.h"
#include "plimsoll/tokenize/chat_template.h"
#include "plimsoll/tokenize/decode_stream.h"
#include "plimsoll/tokenize/json/tokenizer_json.h"

using namespace plimsoll;

namespace {

// The reply to a prompt, shown as it is written.
std::string reply_to(const models::LoadedModel& loaded, const tokenize::Tokenizer& tokenizer,
                     const std::string& prompt) {
  const std::vector<int64_t> ids = tokenizer.encode(prompt, tokenize::Specials::kWithout);
  if (static_cast<int64_t>(ids.size()) > loaded.model->context()) {
    throw std::runtime_error("the conversation is longer than what the model sees");
  }
  models::TokenCache cache = loaded.model->make_cache();
  tokenize::DecodeStream stream(tokenizer);
  std::string reply;
  const auto show = [&](const std::string& text) {
    reply += text;
    std::cout << text << std::flush;
  };
  at::Tensor logits = loaded.model->extend(at::tensor(ids).unsqueeze(0), cache);  // fp32 [1, seq, vocabulary]
  for (int64_t room = loaded.model->context() - cache.length(); room > 0; --room) {
    const int64_t next = logits[0][-1].argmax().item<int64_t>();
    if (loaded.ends(next)) break;
    show(stream.next(next));
    if (room > 1) logits = loaded.model->extend(at::full({1, 1}, next, at::kLong), cache);
  }
  show(stream.finish());
  return reply;
}

void chat(const char* directory) {
  const models::LoadedModel loaded = models::load(directory);
  const tokenize::TokenizerJson tokenizer(directory);
  const tokenize::ChatTemplate chat_template(directory);
  std::vector<tokenize::ChatMessage> messages;
  for (std::string line; std::getline(std::cin, line);) {
    messages.push_back({"user", line});
    const std::string prompt = chat_template.render(messages, tokenize::ReplyPrompt::kAdd).text;
    messages.push_back({"assistant", reply_to(loaded, tokenizer, prompt)});
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: example_chat DIRECTORY\n";
    return 2;
  }
  try {
    const at::NoGradGuard no_grad;
    chat(argv[1]);
  } catch (const std::exception& error) {  // says what is wrong with the directory
    std::cerr << error.what() << '\n';
    return 1;
  }
}
