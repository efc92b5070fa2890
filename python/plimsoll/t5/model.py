"""T5ForConditionalGeneration over the C++ model, with Hugging Face's names and arguments."""

from __future__ import annotations

from operator import index
from typing import Any

import torch

from plimsoll._owned_model import draw_options, write_texts
from plimsoll.t5.outputs import BaseModelOutput, GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput, Seq2SeqLMOutput
from plimsoll.t5.pretrained import T5PreTrainedModel

_EARLY_STOPPING = {False: "heuristic", True: "first", "never": "never"}


class T5ForConditionalGeneration(T5PreTrainedModel):
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        *,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput | tuple[Any, ...]:
        """ids int64 [batch, seq] or embeddings [batch, seq, d_model]; masks are nonzero where there is a token. labels: -100
        is ignored; without the decoder's inputs they are these, shifted right. encoder_outputs: a tensor, or a tuple that
        starts with one.

        use_cache=True, under torch.no_grad() alone, returns past_key_values. Given them, the decoder's inputs follow those
        that were read before, and input_ids, attention_mask and encoder_outputs are not read again; they hold one text a row,
        and change in place."""
        encoder, past = _encoder_output(encoder_outputs), _past(past_key_values)
        if past is None and use_cache:
            if encoder is None:
                encoder = self._run_encoder(input_ids, attention_mask, inputs_embeds, output_hidden_states)
            past = self._model.start(encoder.last_hidden_state, attention_mask)
        loss, logits, encoded, of_encoder, of_decoder = torch.ops.plimsoll.t5_forward(
            self._model,
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_output=None if encoder is None else encoder.last_hidden_state,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            output_hidden_states=bool(output_hidden_states),
            past=past,
        )
        output = Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=past,
            decoder_hidden_states=tuple(of_decoder) or None,
            encoder_last_hidden_state=encoded,
            encoder_hidden_states=tuple(of_encoder) or (encoder and encoder.hidden_states),
        )
        return output.to_tuple() if return_dict is False else output

    @torch.no_grad()
    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        min_new_tokens: int | None = None,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        num_return_sequences: int = 1,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        bad_words_ids: list[list[int]] | None = None,
        output_scores: bool = False,
        return_dict_in_generate: bool = False,
        streamer: Any = None,
    ) -> torch.Tensor | GenerateEncoderDecoderOutput | GenerateBeamEncoderDecoderOutput:
        """Ids [batch * num_return_sequences, length]: the start token, what was written, pad behind </s>; with
        return_dict_in_generate an output that holds them. Arguments and defaults are Hugging Face's. Draws follow
        torch.manual_seed. streamer: put(ids) is called at each step, end() at the end. Without an attention_mask every token
        counts, pad too, as in Hugging Face's encoder-decoders. Logits that are Inf or NaN are an error."""
        new_tokens = max_new_tokens
        if new_tokens is None:
            new_tokens = 20 if max_length is None else max_length - 1
        if early_stopping not in _EARLY_STOPPING:
            raise ValueError(f"generate: expected early_stopping False, True or 'never', got {early_stopping!r}")
        options = torch.ops.plimsoll.t5_generation(
            **draw_options(
                {
                    "max_new_tokens": new_tokens,
                    "do_sample": do_sample,
                    "temperature": temperature,
                    "top_k": top_k,
                    "top_p": top_p,
                    "repetition_penalty": repetition_penalty,
                    "no_repeat_ngram_size": no_repeat_ngram_size,
                }
            ),
            min_new_tokens=index(min_new_tokens or 0),
            num_beams=index(num_beams),
            length_penalty=float(length_penalty),
            early_stopping=_EARLY_STOPPING[early_stopping],
            num_return_sequences=index(num_return_sequences),
            bad_words_ids=[[index(token) for token in word] for word in bad_words_ids or []],
            output_scores=bool(output_scores and return_dict_in_generate),
        )
        if num_beams > 1:
            if do_sample or streamer is not None:
                raise ValueError("generate: expected num_beams=1 with do_sample or a streamer")
            sequences, sequences_scores, beam_indices, scores = self._model.beam_search(input_ids, attention_mask, options)
            if not return_dict_in_generate:
                return sequences  # type: ignore[no-any-return]
            return GenerateBeamEncoderDecoderOutput(
                sequences=sequences,
                sequences_scores=sequences_scores if output_scores else None,
                scores=tuple(scores) if output_scores else None,
                beam_indices=beam_indices,
            )
        steps = self._model.decode(input_ids, attention_mask, options)
        sequences = write_texts(steps, steps.sequences()[:, 0], streamer)
        if not return_dict_in_generate:
            return sequences
        scores = tuple(steps.scores()) if output_scores else None
        return GenerateEncoderDecoderOutput(sequences=sequences, scores=scores)


def _encoder_output(outputs: Any) -> BaseModelOutput | None:
    """An output made of a tensor, or of a tuple or output that starts with one and may go on with the hidden states."""
    if outputs is None or isinstance(outputs, BaseModelOutput):
        return outputs
    values = (outputs,) if torch.is_tensor(outputs) else outputs[:2]
    return BaseModelOutput(zip(("last_hidden_state", "hidden_states"), values, strict=False))


def _past(past_key_values: Any) -> Any:
    if past_key_values is None or isinstance(past_key_values, torch.ScriptObject):
        return past_key_values
    kind = type(past_key_values).__name__
    raise ValueError(f"past_key_values: expected those that use_cache=True has returned, got {kind}")
