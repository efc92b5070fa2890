"""T5, FLAN-T5, mT5 and UMT5 from Hugging Face directories, in fp32, bf16, fp16 and FP8. See docs/t5.md."""

from plimsoll.t5.model import T5ForConditionalGeneration, T5Output

__all__ = ["T5ForConditionalGeneration", "T5Output"]
