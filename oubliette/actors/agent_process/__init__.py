"""Agent processes: one actor for each running agent."""
