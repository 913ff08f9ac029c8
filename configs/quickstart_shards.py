"""Writes shards for the quickstart: Python's language reference, which comes with every CPython.

quickstart_shards.py FOLDER        one JSON Lines file for each initial of a topic's name
"""

import json
import pathlib
import sys
from itertools import groupby
from pydoc_data.topics import topics


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for initial, names in groupby(sorted(topics), key=lambda name: name[0]):
        documents = [{"id": name, "title": name, "text": topics[name].strip()} for name in names]
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        (folder / f"{initial}.jsonl").write_text(lines, "utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
