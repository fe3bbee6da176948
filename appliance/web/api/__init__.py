"""The routes under /v1: one file for each resource, with its OpenAPI description beside it."""
