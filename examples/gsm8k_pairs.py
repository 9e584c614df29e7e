"""Make preference pairs of GSM8K's model solutions: right ones against wrong ones of the same question.

    python examples/gsm8k_pairs.py gsm8k/example_model_solutions.jsonl pairs.jsonl
    posttrain train recipes/gsm8k_dpo.toml tasks.path=pairs.jsonl

Each line of the data (https://github.com/openai/grade-school-math) holds a question and four models' solutions with
``is_correct``. A question with right and wrong ones gives one row: the first right solution is chosen, all different
wrong ones are rejected. Questions that every model got right, or every model wrong, teach nothing here.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def pairs(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one preference row per question that has right and wrong solutions."""
    for row in rows:
        found = [value for value in row.values() if isinstance(value, Mapping) and "is_correct" in value]
        right = [one["solution"].strip() for one in found if one["is_correct"]]
        wrong = dict.fromkeys(one["solution"].strip() for one in found if not one["is_correct"])
        if right and wrong:
            yield {"question": row["question"], "chosen": right[0], "rejected": list(wrong)}


def main(source: str, target: str) -> int:
    """Write the pairs and return how many there are."""
    with open(source, encoding="utf-8") as lines:
        made = list(pairs(json.loads(line) for line in lines))
    Path(target).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")
    return len(made)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/gsm8k_pairs.py example_model_solutions.jsonl pairs.jsonl")
    print(f"{main(*sys.argv[1:])} pairs in {sys.argv[2]}")
