"""What autograd keeps in memory."""

import torch


def saved_bytes(run):
    """Bytes that autograd keeps for the backward pass of ``run()``; shared memory counts once."""
    kept = {}
    held = []  # keeps storages alive, so that an address is not used twice

    def pack(t):
        storage = t.untyped_storage()
        held.append(storage)
        kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = run()
    del result
    return sum(kept.values())
