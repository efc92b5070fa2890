"""One contestant of generate.py: a decoder-only model of Hugging Face, llama.cpp or Plimsoll, run on request.

Requests of worker.py's protocol: {"read": tokens of a prompt, "write": tokens, the likeliest each time}. The answer is {"seconds",
"tokens"}: seconds of a token, the first where it is the only one and else those that follow it, and which were written.
"""

import json
from pathlib import Path
from typing import Any

import worker


class HuggingFace(worker.HuggingFace):
    def __init__(self, directory, dtype, threads):
        super().__init__("AutoModelForCausalLM", directory, dtype)

    def vocabulary(self):
        return self.model.config.vocab_size

    def start(self, capacity):
        self.past = None

    def read(self, ids):
        """The likeliest token that follows all that were read."""
        output = self.model(self.torch.tensor([ids]), past_key_values=self.past, use_cache=True, logits_to_keep=1)
        self.past = output.past_key_values
        return int(output.logits[0, -1].argmax())


class LlamaCpp:
    model: Any

    def __init__(self, directory, dtype, threads):
        """dtype: the file's quantization."""
        import llama_cpp
        import numpy

        self.library, self.numpy, self.version = llama_cpp, numpy, f"llama-cpp-python {llama_cpp.__version__}"
        file = str(Path(directory) / f"{dtype}.gguf")
        batch = 512  # tokens of a prompt that are read at a time
        self.load = lambda: llama_cpp.Llama(
            file, n_ctx=1024, n_batch=batch, n_ubatch=batch, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def vocabulary(self):
        return self.model.n_vocab()

    def start(self, capacity):
        self.model.reset()

    def read(self, ids):
        self.model.eval(ids)
        logits = self.library.llama_get_logits_ith(self.model.ctx, -1)
        return int(self.numpy.ctypeslib.as_array(logits, (self.vocabulary(),)).argmax())


class Plimsoll(worker.Plimsoll):
    steps: Any

    def __init__(self, directory, dtype, threads):
        super().__init__()
        self.load = lambda: self.torch.classes.plimsoll.DecoderModel(directory, dtype)

    def vocabulary(self):
        return json.loads(self.model.config())["vocab_size"]

    def start(self, capacity):
        self.steps, self.capacity = None, capacity

    def read(self, ids):
        if self.steps is None:
            self.steps = self.torch.ops.plimsoll.decoder_decode(
                self.model,
                self.torch.tensor([ids]),
                None,
                max_new_tokens=self.capacity - len(ids),
                do_sample=False,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_p=0.0,
                seed=0,
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
                eos_token_ids=[],
                pad_token_id=0,
            )
        return int(self.steps.step())


def answer(contestant, request):
    ids = [(1 + place * 104729) % contestant.vocabulary() for place in range(request["read"])]
    contestant.start(len(ids) + request["write"])
    seconds, first = worker.seconds_of(contestant.read, ids)
    tokens = [first]

    def follow():
        while len(tokens) < request["write"]:
            tokens.append(contestant.read(tokens[-1:]))

    if request["write"] > 1:
        seconds = worker.seconds_of(follow)[0] / (request["write"] - 1)
    return {"seconds": seconds, "tokens": tokens}


if __name__ == "__main__":
    worker.serve(
        {"hf": HuggingFace, "llama.cpp": LlamaCpp, "plimsoll": Plimsoll},
        lambda contestant: answer(contestant, {"read": 1, "write": 1}),
        answer,
    )
