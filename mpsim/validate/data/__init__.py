"""How rows of measured data are read: names of hardware, of operations, of schedules, of software."""
