"""Enums and frozen records that cross packages. They hold no behaviour and do no I/O."""
