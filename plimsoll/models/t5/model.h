// T5: an encoder that reads text and a decoder that writes it, with the parameters of Hugging Face's
// T5ForConditionalGeneration under their names. v1.0, v1.1 (FLAN), mT5 and UMT5 are T5Configs of it; of an
// encoder-only checkpoint there is no decoder.
#pragma once

#include <optional>

#include "plimsoll/models/t5/stack.h"

namespace plimsoll::models {

struct T5Input {
  at::Tensor input_ids = {};               // int64 [batch, seq]
  at::Tensor attention_mask = {};          // [batch, seq], nonzero where there is a token; undefined: everywhere
  at::Tensor decoder_input_ids = {};       // int64 [batch, target]; undefined: labels, shifted right
  at::Tensor decoder_attention_mask = {};  // as attention_mask
  at::Tensor labels = {};                  // int64 [batch, target], -100 ignored; or undefined
  at::Tensor encoder_output = {};          // [batch, seq, d_model]: not computed again from input_ids
  at::Tensor inputs_embeds = {};           // [batch, seq, d_model], instead of input_ids
  at::Tensor decoder_inputs_embeds = {};   // [batch, target, d_model], instead of decoder_input_ids
  // The decoder's tokens follow those in the cache, which knows what the encoder has said: without gradients, labels and
  // decoder_attention_mask.
  T5Cache* cache = nullptr;
  bool hidden_states = false;  // asks for those of T5Output
};

struct T5Output {
  at::Tensor loss;            // fp32, the mean over labels; undefined without
  at::Tensor logits;          // [batch, target, vocab_size]
  at::Tensor encoder_output;  // [batch, seq, d_model]; with a cache as it was given
  // If asked for: the embedded tokens, what each block but the last makes of them, and the stack's output.
  std::vector<at::Tensor> encoder_hidden_states = {}, decoder_hidden_states = {};
};

// Children: shared, encoder, decoder, and lm_head unless the head is tied. Parameters are uninitialised until they are
// loaded (by name, Tensor::set_data) or drawn. Everything between the products is in the dtype of the scope
// (Fp8Autocast, autocast), outside scopes in that of the norms' weights.
class T5ForConditionalGenerationImpl : public torch::nn::Cloneable<T5ForConditionalGenerationImpl> {
 public:
  explicit T5ForConditionalGenerationImpl(const T5Config& config);
  void reset() override;
  // As Hugging Face's T5 draws them.
  void reset_parameters(std::optional<at::Generator> generator = std::nullopt);

  // [batch, seq, d_model].
  at::Tensor encode(const at::Tensor& input_ids, const at::Tensor& attention_mask = {});
  // The encoder alone: its output and hidden states.
  T5Output run_encoder(const T5Input& input);
  T5Output forward(const T5Input& input);

  // Generation, without gradients: a cache for rows_per_text rows a text, each of up to `capacity` tokens.
  T5Cache start(const T5Encoded& encoded, int64_t rows_per_text, int64_t capacity);
  // fp32 logits [rows, vocab_size] of what follows `tokens` int64 [rows, seq], which follow those in the cache and join
  // it.
  at::Tensor extend(const at::Tensor& tokens, T5Cache& cache);

  // The head of a model with a decoder. Tied, it is no child and reads shared.weight.
  T5LinearImpl& head() { return *head_; }

  // In the order in which they compute; of a model with a decoder the head comes last.
  std::vector<T5Product> products();

  // decoder_input_ids of labels: one place later, behind decoder_start_token_id, -100 as pad.
  at::Tensor shift_right(const at::Tensor& labels) const;

  T5Config config;
  T5Numerics numerics = {};  // of FP16
  T5Weight shared{nullptr};
  T5Stack encoder{nullptr}, decoder{nullptr};
  T5Linear lm_head{nullptr};

 private:
  friend class PagedT5;
  friend class T5TeamStep;
  at::ScalarType computed_dtype() const;
  at::Tensor embed(const at::Tensor& ids) const;
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& embeds, const char* name) const;
  T5Output forward_cached(const T5Input& input);
  at::Tensor logits(const at::Tensor& hidden);
  void check_has_decoder() const;
  void keep_plan();

  T5Linear head_{nullptr};
  T5Product logits_;
};
TORCH_MODULE(T5ForConditionalGeneration);

}  // namespace plimsoll::models
