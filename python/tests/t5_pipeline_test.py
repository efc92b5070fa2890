"""`plimsoll.t5` in a pipeline of transformers, whose version 5 has none for T5 of its own: texts in, texts out."""

import pytest
import torch
import transformers
from plimsoll.t5 import T5ForConditionalGeneration
from t5_models import make, save, train_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

SENTENCES = [
    "The ship lies deep in the water.",
    "A line on its side says how deep.",
    "How deep may it lie?",
    "Deep water, deep ship.",
]
PIECES = 60


class Text2Text(transformers.Pipeline):  # type: ignore[misc]  # transformers is without types
    """Pipeline that transformers 4 called text2text-generation."""

    def _sanitize_parameters(self, **options):
        return {}, options, {}

    def preprocess(self, text):
        return self.tokenizer(text, return_tensors="pt")

    def _forward(self, inputs, **options):
        return {"ids": self.model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **options)}

    def postprocess(self, outputs):
        return [{"generated_text": text} for text in self.tokenizer.batch_decode(outputs["ids"], skip_special_tokens=True)]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """(Hugging Face's model, its directory, the tokenizer)."""
    folder = tmp_path_factory.mktemp("t5")
    train_tokenizer(folder, SENTENCES * 20, pieces=PIECES)
    theirs = make("v1.1", vocab_size=PIECES + 100)
    save(theirs, folder)
    return theirs, folder, transformers.T5Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize("options", [{"max_new_tokens": 12}, {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2}])
def test_a_pipeline_writes_what_transformers_model_writes(case, options):
    theirs, folder, tokenizer = case
    ours = T5ForConditionalGeneration.from_pretrained(folder)
    written = [Text2Text(model=model, tokenizer=tokenizer, device="cpu")(SENTENCES[:3], **options) for model in (ours, theirs)]
    assert written[0] == written[1]
    assert len(written[0]) == 3 and len(written[0][0]) == options.get("num_return_sequences", 1)
    assert any(answer["generated_text"] for texts in written[0] for answer in texts)


def test_batches_are_padded_and_fp16_runs(case):
    _, folder, tokenizer = case
    ours = T5ForConditionalGeneration.from_pretrained(folder, torch.float16)
    pipeline = Text2Text(model=ours, tokenizer=tokenizer, device="cpu")
    alone = pipeline(SENTENCES, max_new_tokens=8)
    together = ours.generate(**tokenizer(SENTENCES, return_tensors="pt", padding=True), max_new_tokens=8)
    assert [texts[0]["generated_text"] for texts in alone] == tokenizer.batch_decode(together, skip_special_tokens=True)
