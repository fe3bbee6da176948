"""In charge of finding out whether this machine is fit to send mail, and of saying what to do where it is not."""
