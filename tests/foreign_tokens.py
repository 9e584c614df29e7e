"""A teacher's tokenizer that is not the toy's: bytes with a few merges, and another template."""

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<turn>", "<done>")
MERGES = (("a", "b"), ("c", "d"), ("ab", "cd"), ("=", "1"), ("1", "2"))
TEMPLATE = (
    "{% for message in messages %}{{ '<turn>' + message.role + ': ' + message.content + '<done>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant: ' }}{% endif %}"
)


def build_byte_tokenizer() -> PreTrainedTokenizerFast:
    """All bytes, merges that make `ab`, `cd`, `abcd`, `12` and `=1` one token, and a template of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = (*SPECIAL, *alphabet, *("".join(pair) for pair in MERGES))
    core = Tokenizer(BPE(vocab={word: index for index, word in enumerate(words)}, merges=list(MERGES)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<done>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer
