"""The hardware catalog: accelerators.yaml, links.yaml, systems.yaml."""
