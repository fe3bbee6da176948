"""In charge of getting accepted mail to its recipients."""
