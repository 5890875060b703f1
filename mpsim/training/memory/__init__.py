"""Memory of a plan: model states, activations over the order of actions, buffers, overhead."""
