"""`python -m rolloutpool_planner inputs.yaml`: print the plan for these inputs.

Exit status: 0 with a plan, 1 without one, 2 if the inputs cannot be used.
"""

import sys
from pathlib import Path

from .answers import Plan
from .errors import PlannerError
from .explain import explain
from .plan import plan
from .read import read_inputs


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m rolloutpool_planner inputs.yaml\n")
        return 2
    try:
        result = plan(read_inputs(Path(arguments[0]).read_text(encoding="utf-8")))
    except (OSError, PlannerError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(explain(result) + "\n")
    return 0 if isinstance(result, Plan) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
