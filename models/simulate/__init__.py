"""A simulated fleet: seeded, vectorised, with truth. For the demo, for tests, for training.

>>> from models.simulate import Fleet
>>> fleet = Fleet(nodes=2, seed=1, start_ns=0)
>>> samples = fleet.tick(30_000_000_000)
>>> sorted({sample.measurement for sample in samples})
['bmc', 'disk', 'event', 'gpu', 'host', 'ib_port', 'source']
"""

from models.simulate.faults import CLASSES, Truth
from models.simulate.fleet import Fleet
from models.simulate.scenario import Scenario, load
from models.simulate.workload import Job

__all__ = ["CLASSES", "Fleet", "Job", "Scenario", "Truth", "load"]
