"""In charge of the name by which other floors catch what SQLite itself refuses: a damaged, locked or foreign file."""

import apsw

DatabaseFault = apsw.Error
