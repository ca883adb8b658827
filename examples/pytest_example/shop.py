"""A shop that asks an agent about its orders."""

from __future__ import annotations

from typing import Any

ORDERS = {"A-17": {"state": "refunded", "reason": "arrived broken"}}


def find_order(order: str) -> dict[str, str]:
    """Look an order up.

    Args:
        order: its number, such as A-17.
    """
    return ORDERS[order]


async def explain(project: Any, order: str) -> str:
    """The agent's explanation of an order's state."""
    answer = await project.run(f"Explain the state of {order}.", tools=[find_order])
    return answer.text
