"""Implements the learner: DeepSpeed ZeRO ranks as Ray actors, and the client with which the controller steps them."""
