"""The last step when a majority of the disks is gone for good: one survivor goes on alone."""
