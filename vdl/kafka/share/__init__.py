"""Share groups on the side of the partitions' leaders (KIP-932): record locks and deliveries.

`share_partition` is one share-partition as a state machine without I/O. `live_partitions` holds
those of this server, claims them from the coordinator, makes their changes durable there, and drops
them when leadership ends. `sessions` holds what each member reads.
"""
