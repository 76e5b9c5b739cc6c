"""Write the pages of docs/benchmarks from the result files, or compare them with what is there.

    python -m benchmarks.pages             write them
    python -m benchmarks.pages --check     print what differs; exit code 1 if anything does

The pages are templates (benchmarks/pages/templates) over the result files that benchmarks/pages/catalogue.py lists; of
each benchmark the last run is kept. docs/operate/jetson.md has one computed table (benchmarks/boards.py). In other
texts a measured figure is followed by a comment, which a test evaluates:

    1.7 times<!-- closed-loop-cpu-2026-11-22.json: EXPRESSION -->
    186 of 200<!-- FILE.json: EXPRESSION; EXPRESSION -->        one for each of the last numbers, in their order
    313 ms<!-- source: ActionFlow, Table 1 -->                  a figure that others have published

EXPRESSION has numbers, + - * / ( ) and paths into the file:

    key.key        "key" must be a plain word, else ["any key"]
    [0]            an entry of a list
    [mode=serial, speed_cm_s=5]    the one entry of a list with these values; text with blanks in quotes

The value is rounded as the printed number is, and converted by the expression: `cells[0].exact * 100` for percent.
"""

from __future__ import annotations

import argparse
import difflib
import sys

from benchmarks.pages.render import PAGES, rendered, written


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; print what differs")
    check = parser.parse_args().check
    new, old = rendered(), written()
    differing = [name for name in sorted({*new, *old}) if new.get(name) != old.get(name)]
    for name in differing:
        if check:
            was, is_now = (each.get(name, "").splitlines(keepends=True) for each in (old, new))
            sys.stdout.writelines(difflib.unified_diff(was, is_now, f"{name} as it is", f"{name} as it should be"))
        elif name in new:
            PAGES.mkdir(exist_ok=True)
            (PAGES / name).write_text(new[name])
        else:
            (PAGES / name).unlink()
    return int(check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
