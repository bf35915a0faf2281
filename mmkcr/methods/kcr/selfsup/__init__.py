"""Pre-training by MOCA: the model (``moca``), its two heads, and the words that they predict."""
