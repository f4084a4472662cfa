#!/usr/bin/env bash
# Dask DataFrame turns a column of lists into text, without a word.
#
# Versions: dask 2026.8.0, pandas 3.1.1, pyarrow 26.0.1, Python 3.11.
# Expected: from_pandas keeps the values of a column of objects, as pandas does, so that a function of map_partitions gets
#   the lists of the frame; dataframe.convert-string converts columns of strings.
# Behaviour: every column of objects becomes one of strings. A list of two strings arrives as the text of its repr, and
#   iterating over it gives characters. With dataframe.convert-string set to False the lists stay.
# Output seen:
#   pandas: list ['a b', 'c']
#   dask: str "['a b', 'c']"
#   dask, convert-string False: list ['a b', 'c']
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet "dask[dataframe]==2026.8.0" pandas==3.1.1 pyarrow==26.0.1

cat > lists.py <<'PYTHON'
import warnings

import dask
import dask.dataframe as dd
import pandas as pd

warnings.simplefilter("error")
frame = pd.DataFrame({"names": [["a b", "c"]]})


def describe(part):
    return part.names.map(lambda value: f"{type(value).__name__} {value!r}")


def in_dask():
    rows = dd.from_pandas(frame, npartitions=1)
    return rows.map_partitions(describe, meta=("names", object)).compute()[0]


print("pandas:", describe(frame)[0])
print("dask:", in_dask())
with dask.config.set({"dataframe.convert-string": False}):
    print("dask, convert-string False:", in_dask())
PYTHON

venv/bin/python lists.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
pandas: list ['a b', 'c']
dask: str "['a b', 'c']"
dask, convert-string False: list ['a b', 'c']
OUTPUT
