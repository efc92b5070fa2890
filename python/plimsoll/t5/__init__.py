"""T5, FLAN-T5, mT5 and UMT5 from Hugging Face directories, in fp32, bf16, fp16 and FP8. See docs/t5.md."""

from plimsoll.t5.encoder import T5EncoderModel
from plimsoll.t5.model import T5ForConditionalGeneration
from plimsoll.t5.outputs import (
    BaseModelOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateEncoderDecoderOutput,
    Seq2SeqLMOutput,
)

__all__ = [
    "BaseModelOutput",
    "GenerateBeamEncoderDecoderOutput",
    "GenerateEncoderDecoderOutput",
    "Seq2SeqLMOutput",
    "T5EncoderModel",
    "T5ForConditionalGeneration",
]
