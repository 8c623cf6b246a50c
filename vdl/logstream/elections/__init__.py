"""Elections: timers of groups, the number of campaigns, and groups at rest."""
