"""What comes back after a delivery: return-path addresses, bounces, complaints, and reports about a domain.

Strangers write all of it. So no module here does I/O or keeps state; each reads any bytes in time and memory that grow
with their size and no faster, within limits that are written above it, and raises only what it declares.
"""
