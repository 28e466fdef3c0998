"""What holds for all tests."""

from hypothesis import settings

# Machines that run several things at once make the times of examples meaningless.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
