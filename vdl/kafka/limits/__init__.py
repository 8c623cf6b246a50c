"""What bounds clients: memory of requests and answers, quotas."""
