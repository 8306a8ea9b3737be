"""The learner: DeepSpeed ZeRO ranks as Ray actors, and the client through which the controller steps them."""
