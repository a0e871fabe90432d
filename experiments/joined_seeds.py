"""The tables of Mix-MNIST over seeds that were reproduced one by one, by networks or machines that no longer exist.

    secondread reproduce mix-mnist --seed 6 --seeds 1 --out somewhere
    python -m experiments.joined_seeds somewhere/mix-mnist.json elsewhere/mix-mnist.json --save mix-mnist_seeds

Numbers of each seed are those of its own document; means, spreads and the comparison with the paper are made anew.
"""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from experiments import RESULTS
from ml.reproduce.synthetic import Row, gathered, tables, verdicts


def joined(documents: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """One document of all seeds, and its page in Markdown.

    Raises:
        ValueError: the documents are not of one reproduction, judged by the same truth, or share a seed.
    """
    first = documents[0]
    for name in ("name", "truth", "quick"):
        if any(document[name] != first[name] for document in documents):
            raise ValueError(f"the documents differ in {name}")
    seeds = [seed for document in documents for seed in document["seeds"]]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"a seed comes twice: {sorted(seeds)}")
    rows = sorted((Row(**row) for document in documents for row in document["rows"]), key=lambda row: row.seed)
    text, further = verdicts(first["name"], rows)
    document = {
        "name": first["name"],
        "what": first["what"],
        "seeds": sorted(seeds),
        "quick": first["quick"],
        "truth": first["truth"],
        "versions": [{"seeds": each["seeds"], **each["versions"]} for each in documents],
        "rows": [vars(row) for row in rows],
        **further,
    }
    title = f"# {first['what'].split(':')[0]}, Tables 1 and 2: seeds {', '.join(map(str, sorted(seeds)))}"
    how = "Each seed was reproduced by itself (`python -m experiments.joined_seeds`). Mean ± spread over seeds."
    return document, "\n\n".join([title, how, text, tables(first["name"], gathered(rows))]) + "\n"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", type=Path, help="of `secondread reproduce`, one per seed or more")
    parser.add_argument("--save", metavar="NAME", help="keep them in benchmarks/results, by this name")
    options = parser.parse_args()
    document, text = joined([json.loads(path.read_text()) for path in options.documents])
    print(text)
    if options.save:
        folder = RESULTS / f"{date.today()}_{options.save}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{document['name']}.json").write_text(json.dumps(document, indent=1) + "\n")
        (folder / f"{document['name']}.md").write_text(text)


if __name__ == "__main__":
    main()
