"""How published tables are read: names of hardware, of operations, of schedules, of software."""
