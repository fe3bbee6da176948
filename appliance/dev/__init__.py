"""`appliance dev`: the mail server for a developer's machine, without logins, secrets or files."""
