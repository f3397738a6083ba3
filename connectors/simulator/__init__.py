"""A discrete-event simulator of an LLM serving cluster: what Headrace is tried on without a GPU.

On a virtual clock: `simulate(trace, config, policy)`. In real time, on a bus: `headrace.connectors.simulator.live`.
"""

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import RoleConfig, SimulatorConfig, Sla, from_preset, parse
from headrace.connectors.simulator.loads import LoadSpec, generate
from headrace.connectors.simulator.policy import FixedFleet, Policy
from headrace.connectors.simulator.report import SimulationReport
from headrace.connectors.simulator.simulate import Options, simulate
from headrace.connectors.simulator.sweep import candidate_fleets, compare, static_sweep
from headrace.connectors.simulator.traces import Trace, load_trace, overlay, scale_rate, scale_time

__all__ = [
    "Cluster",
    "FixedFleet",
    "LoadSpec",
    "Options",
    "Policy",
    "RoleConfig",
    "SimulationReport",
    "SimulatorConfig",
    "Sla",
    "Trace",
    "candidate_fleets",
    "compare",
    "from_preset",
    "generate",
    "load_trace",
    "overlay",
    "parse",
    "scale_rate",
    "scale_time",
    "simulate",
    "static_sweep",
]
