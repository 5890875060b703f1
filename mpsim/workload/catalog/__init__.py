"""Published models as YAML, each with its source."""
