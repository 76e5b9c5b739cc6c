"""Token ids of long texts: other threads run meanwhile, and a text that is far too long is not encoded whole."""

from __future__ import annotations

from tokenizers import Tokenizer

PIECE = 16 << 10  # characters
SLACK = 1.125  # a cut may add tokens, or change those around it


def encode(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """The token ids of a text.

    It is encoded as a batch of one, during which the library lets other threads run; its other calls do not.
    """
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
    return list(encoding.ids)


def far_exceeds(tokenizer: Tokenizer, text: str, most: int) -> bool:
    """True if a text has many more than `most` tokens; found in pieces, of which the last ones are not encoded then.

    A token takes several hundred bytes while a text is being encoded.
    """
    if len(text.encode()) <= most:
        return False
    count = 0
    for start in range(0, len(text), PIECE):
        count += len(encode(tokenizer, text[start : start + PIECE], special=False))
        if count > SLACK * most:
            return True
    return False
