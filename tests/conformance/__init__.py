"""The consensus core against scripted transcripts and tables from the etcd-io/raft project.

The data is an outside oracle and lives outside this repository; `run` takes the folder.
"""
