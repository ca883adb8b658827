"""Projects: their supervisor, one actor for each project, and the watch over their disk usage."""
