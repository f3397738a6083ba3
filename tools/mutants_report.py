"""The score of a session of tools/mutants.sh, and every mutant that no test has noticed.

python tools/mutants_report.py SESSION
"""

import sqlite3
import sys
from collections import Counter

OUTCOMES = """
    select module_path, start_pos_row, start_pos_col, operator_name, test_outcome, diff
    from mutation_specs join work_results using (job_id) where worker_outcome = 'NORMAL' order by 1, 2, 3
"""


def change(diff: str) -> str:
    """What a diff takes away and what it adds, on one line."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "  ->  ".join(line[1:].strip() for line in lines)


def main(session: str) -> None:
    killed, total = Counter[str](), Counter[str]()
    found = sqlite3.connect(f"file:{session}?mode=ro", uri=True)
    for module, row, column, operator, outcome, diff in found.execute(OUTCOMES):
        total[module] += 1
        if outcome == "SURVIVED":
            print(f"{module}:{row}:{column} {operator.removeprefix('core/')}: {change(diff)}")
        else:
            killed[module] += 1
    found.close()
    for module, count in [*total.items(), ("all", total.total())]:
        noticed = killed.total() if module == "all" else killed[module]
        print(f"{module:32} {noticed:5} of {count:5} killed")


if __name__ == "__main__":
    main(sys.argv[1])
