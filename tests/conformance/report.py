"""Counts, file by file, how many recorded cases of the reference planner are matched: `make conformance`."""

import sys
from collections import Counter

from conformance import ABSENT, VECTORS, cases, differences, files


def main() -> int:
    if not VECTORS.is_dir():
        print(ABSENT, file=sys.stderr)
        return 0
    failures = []
    width = max(map(len, files()))
    for file in files():
        count: Counter[str] = Counter()
        for case in cases(file):
            try:
                count["deliberate differences" if differences(case) else "matched"] += 1
            except AssertionError as e:
                failures.append(f"{file} {case.name}: not matched{f': {e}' if str(e) else ''}")
        print(
            f"{file:<{width}}" + "".join(f"{count[kind]:6d} {kind}" for kind in ("matched", "deliberate differences"))
        )
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
