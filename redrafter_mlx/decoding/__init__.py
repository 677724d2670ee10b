"""One round of speculative decoding: draft, verify, choose, accept, commit."""
