"""An SMTP client: a core without I/O (`opening`, `sending`) and a Trio driver (`connection`)."""
