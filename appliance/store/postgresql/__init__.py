"""The second engine: a PostgreSQL that several appliances may share, with the same verbs as the embedded one."""
