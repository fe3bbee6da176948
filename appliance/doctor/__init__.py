"""`appliance doctor`: observes everything that mail depends on, and reports what is wrong and what to do."""
