"""The target (Llama family), its KV cache and the recurrent drafter."""
