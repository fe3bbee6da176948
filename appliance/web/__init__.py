"""In charge of everything that speaks HTTP."""
