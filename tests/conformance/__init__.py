"""The consensus core against scripted transcripts and tables from the etcd-io/raft project.

The data is an external oracle outside of this repository; `run` takes the folder.
"""
