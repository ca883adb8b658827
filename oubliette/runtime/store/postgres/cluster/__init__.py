"""Tables of a cluster: nodes, leases, homes of projects, shares of limits, listeners, copies."""
