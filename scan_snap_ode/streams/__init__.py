"""Real tokens: text to token streams (`load_corpus`), streams to counted windows (`windows`)."""

from scan_snap_ode.streams.corpora import TokenStream, load_corpus
from scan_snap_ode.streams.tokenizers import whitespace, words
from scan_snap_ode.streams.windows import Windows, windows

__all__ = ["TokenStream", "Windows", "load_corpus", "whitespace", "windows", "words"]
