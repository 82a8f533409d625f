"""Models: input, a backbone of mixers, a head; weights in safetensors, ready for the Hub."""
