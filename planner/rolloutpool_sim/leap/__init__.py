"""A leaping engine model for fleets: the integer decisions of `rolloutpool_sim.engine`, much faster.

Pure like that: it must not do I/O, read a clock or draw random numbers, and must not decide otherwise than
the exact model does (the tests compare the two).
"""

from rolloutpool_sim.leap.engine import LeapEngine
from rolloutpool_sim.leap.offload import Offload
from rolloutpool_sim.leap.request import LeapRequest, Segment

__all__ = ["LeapEngine", "LeapRequest", "Offload", "Segment"]
