"""Why something is as it is: answers from the state of servers and their latest events."""
