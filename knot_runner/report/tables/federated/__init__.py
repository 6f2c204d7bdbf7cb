"""Tables of federated runs: by temperature (FLex&Chill) and of clustered clients (FedWaD)."""
