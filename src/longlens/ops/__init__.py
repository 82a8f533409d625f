"""Functions on tensors: torch only, never `nn.Module`."""
