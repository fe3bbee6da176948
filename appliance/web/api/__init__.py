"""The routes under /v1, one module per resource. A class of routes in any module here is served and documented."""
