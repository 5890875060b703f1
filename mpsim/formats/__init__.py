"""Formats of other tools: their keys, defaults, eras and words as data, read by importers and exporters alike."""

from mpsim.formats.keys import Key, key_to, keys, values_of

__all__ = ["Key", "key_to", "keys", "values_of"]
