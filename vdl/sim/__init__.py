"""Whole servers on virtual time: one thread, one seed, every fault.

A world holds servers built exactly as production builds them, from the Kafka front end down to the
store; only clock, network, disk and randomness are swapped. What a seed did can be done again:
`vdl sim --seed N`. Must not be imported by anything but the command line.
"""
