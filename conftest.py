"""What pytest collects in the package: modules that import torch only where it is installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["mpsim/measure/[!_]*.py"]
