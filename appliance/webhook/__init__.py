"""In charge of telling customers' servers about results."""
