"""What is asked: scenarios by family of APIs."""
