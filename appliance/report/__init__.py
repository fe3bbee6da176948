"""The words in which the command line and the dashboard tell where mail stands."""
