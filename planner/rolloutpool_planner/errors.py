"""What can go wrong before and while planning, other than the answers `Infeasible` and `SolverTimeout`."""


class PlannerError(Exception):
    """Base of the planner's errors."""


class InputError(PlannerError, ValueError):
    """The inputs contradict each other or are out of range; the message names field and value."""


class SolverError(PlannerError):
    """The solver could not be run or crashed (missing executable, no disk space for its files)."""


class PlanCheckError(PlannerError):
    """A solved plan failed the check in plain arithmetic: a defect, so the plan must not be used."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("the solver's plan breaks its own constraints: " + "; ".join(violations))
        self.violations = violations
