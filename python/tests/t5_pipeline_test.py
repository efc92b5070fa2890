"""`plimsoll.t5` in a pipeline of transformers, whose version 5 has none for T5 of its own: texts in, texts out."""

import plimsoll.t5
import pytest
import torch
import transformers
from plimsoll.t5 import T5ForConditionalGeneration
from rounding import approx, gamma
from t5_models import PATH, make, relative, save, train_tokenizer

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


@pytest.mark.parametrize("library", [transformers, plimsoll.t5], ids=["transformers", "plimsoll.t5"])
def test_the_examples_of_transformers_page_run(case, library):
    """transformers' page on T5, with the checkpoint's name and the import changed."""
    theirs, folder, tokenizer = case
    model = library.T5ForConditionalGeneration.from_pretrained(folder)
    input_ids = tokenizer("The <extra_id_0> walks in <extra_id_1> park", return_tensors="pt").input_ids
    labels = tokenizer("<extra_id_0> cute dog <extra_id_1> the <extra_id_2>", return_tensors="pt").input_ids
    outputs = model(input_ids=input_ids, labels=labels)
    assert outputs.loss.item() == approx(theirs(input_ids=input_ids, labels=labels).loss.item(), PATH)
    assert outputs.logits.shape == (*labels.shape, PIECES + 100)

    input_ids = tokenizer("summarize: studies have shown that owning a dog is good for you", return_tensors="pt").input_ids
    outputs = model.generate(input_ids, do_sample=False)
    expected = theirs.generate(input_ids, do_sample=False)
    decode = lambda ids: tokenizer.decode(ids[0], skip_special_tokens=True)
    assert decode(outputs) == decode(expected)

    encoder = library.T5EncoderModel.from_pretrained(folder)
    last_hidden_states = encoder(input_ids=input_ids).last_hidden_state
    assert relative(last_hidden_states, theirs.encoder(input_ids=input_ids).last_hidden_state) < gamma(PATH)
