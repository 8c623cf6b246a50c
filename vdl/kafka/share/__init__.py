"""Share groups on the side of the partitions' leaders (KIP-932): who has which record, until when.

`share_partition` is one share-partition as a state machine without I/O. `live_partitions` has those
of this server, claims them from the coordinator and drops them with the leadership. `writes` makes
what changed durable there. `sessions` says what each member reads.
"""
