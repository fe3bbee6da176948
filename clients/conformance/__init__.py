"""Conformance of the client libraries: scenarios, a proxy that injects faults, and the runner. See README.md."""
