"""An existing model's matrix products in FP8, and back: see :func:`plimsoll.convert`."""

from plimsoll.convert.conversion import ConversionReport, Entry, convert, convert_back

__all__ = ["ConversionReport", "Entry", "convert", "convert_back"]
