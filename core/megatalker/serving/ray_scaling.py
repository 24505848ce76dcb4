"""The number of replicas on Ray Serve. Ray sends this file to its controller: it imports nothing of ours."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

LOAD = "load"
"""The figure that each replica reports: its streams, running and waiting, over the number that it should run."""


def replicas_wanted(context: "AutoscalingContext") -> tuple[float, dict[str, Any]]:
    """Enough that none has more than it should; Ray rounds up, waits, and keeps to the limits.

    A replica that has reported nothing yet is as loaded as it should be: it neither calls for others nor is too many.
    """
    reported = (context.aggregated_metrics or {}).get(LOAD, {})
    return sum(reported.values()) + max(0, context.current_num_replicas - len(reported)), {}
