-- Facts of the installation itself, by name: the fingerprint of the key file that seals its secrets.
CREATE TABLE installation (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
