"""Framework presets, one YAML file a family."""
