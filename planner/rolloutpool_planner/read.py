"""Read the planner's inputs from YAML: the fields of `PlannerInputs`, by their Python names."""

from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from rolloutpool_sim.profile import ProfileError, load_builtin

from .errors import InputError
from .inputs import PlannerInputs

_INPUTS = TypeAdapter(PlannerInputs)


def read_inputs(text: str) -> PlannerInputs:
    """Parse YAML. `profile` is a built-in profile's name or a whole profile. Raises InputError."""
    try:
        data: Any = yaml.safe_load(text)
        if isinstance(data, dict) and isinstance(data.get("profile"), str):
            data = {**data, "profile": load_builtin(data["profile"])}
        return _INPUTS.validate_python(data)
    except (yaml.YAMLError, ProfileError) as error:
        raise InputError(f"the inputs cannot be read: {error}") from error
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'inputs'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise InputError(f"the inputs are not valid at {faults}") from error
