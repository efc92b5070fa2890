"""Decoder-only models from Hugging Face directories, trained and run by Plimsoll. See docs/decoders.md."""

from plimsoll.models.auto import AutoModelForCausalLM
from plimsoll.models.causal_lm import CausalLM
from plimsoll.models.lora import LoraConfig, PeftModel, get_peft_model
from plimsoll.models.outputs import CausalLMOutputWithPast

__all__ = ["AutoModelForCausalLM", "CausalLM", "CausalLMOutputWithPast", "LoraConfig", "PeftModel", "get_peft_model"]
