"""What stands around any federated method and acts on the messages of its clients: privacy, a fleet, a server that
distills, clusters; and what a round computes."""
