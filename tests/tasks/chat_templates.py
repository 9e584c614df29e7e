"""Chat templates in the styles that real models use, and a small tokenizer that knows their special tokens."""

from functools import cache

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_NEWLINE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + ('ipython' if message['role'] == 'tool' else message['role']) }}"
    "{{ '<|end_header_id|>\n\n' }}"
    "{% if message.tool_calls %}{{ message.tool_calls[0].function | tojson }}"
    "{% elif message['role'] == 'tool' %}{{ message['content'] | tojson }}"
    "{% else %}{{ message['content'] | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN3 = """
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- set seen = namespace(found=false) %}
{%- for message in messages[::-1] %}
  {%- set index = (messages|length - 1) - loop.index0 %}
  {%- if not seen.found and message.role == "user" %}
    {%- set seen.found = true %}{%- set ns.last_query_index = index %}
  {%- endif %}
{%- endfor %}
{%- for message in messages %}
  {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
  {%- elif message.role == "assistant" %}
    {%- set content = message.content %}{%- set reasoning_content = '' %}
    {%- if '</think>' in content %}
      {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
      {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content }}
    {%- else %}
      {{- '<|im_start|>assistant\\n' + content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
  {%- elif message.role == "tool" %}
    {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
    {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\n' "
    "+ message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
QUIET = (
    "{% for message in messages %}{% if message['role'] in ('user', 'assistant') %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set rules = messages[0]['content'] %}"
    "{% set talk = messages[1:] %}{% else %}{% set rules = '' %}{% set talk = messages %}{% endif %}"
    "{% for message in talk %}{% if message['role'] == 'user' %}"
    "{% if loop.last and rules %}{{ '[INST] ' + rules + '\n\n' + message['content'] + '[/INST]' }}"
    "{% else %}{{ '[INST] ' + message['content'] + '[/INST]' }}{% endif %}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles') }}{% endif %}{% endfor %}"
)
PHI3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
FORCED_THINK = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
NO_GENERATION_PROMPT = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
)
CALLS_FIRST = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('a tool message needs a tool call before it') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% if message.tool_calls %}{{ '\n<tool_call>\n' + message.tool_calls[0].function | tojson + '\n</tool_call>' }}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

STYLES = {
    "chatml": CHATML,
    "no_newline": NO_NEWLINE,
    "llama3": LLAMA3,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "phi3": PHI3,
    "no_generation_prompt": NO_GENERATION_PROMPT,
    "calls_first": CALLS_FIRST,
}
"""Templates that close a turn with a token and whose prompts need no thinking."""

CLOSING = {
    "chatml": "<|im_end|>",
    "no_newline": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "qwen3": "<|im_end|>",
    "gemma": "<end_of_turn>",
    "mistral": "</s>",
    "phi3": "<|end|>",
    "no_generation_prompt": "<|im_end|>",
    "calls_first": "<|im_end|>",
}
"""The token text that ends a turn, by style."""

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "</s>", "<|end|>", "<|user|>"),
]
CORPUS = ["user assistant system hello there what is the answer\n\nit is 42 you are a helpful assistant.\n"] * 4


@cache
def _bpe(merges: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = len(SPECIAL) + len(alphabet) + merges
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def build_tokenizer(template: str | None = CHATML, *, eos: str | None = "<|im_end|>", swallow: str = ""):
    """Return a byte-level BPE tokenizer whose padding token is its end token; ``swallow`` eats blanks after it."""
    tokenizer = Tokenizer.from_str(_bpe(80))
    if swallow:
        tokenizer.add_special_tokens([AddedToken(swallow, rstrip=True, special=True)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token=eos, bos_token="<|begin_of_text|>"
    )
    fast.chat_template = template
    return fast


def build_style(style: str):
    """Return a tokenizer with the template of a style and the end token that goes with it."""
    eos = {"mistral": "</s>", "phi3": "<|endoftext|>", "llama3": "<|eot_id|>"}.get(style, "<|im_end|>")
    return build_tokenizer(STYLES[style], eos=eos)
