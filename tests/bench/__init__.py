"""`make bench`: what the project claims about speed, measured beside the peer or the limit, in one run."""
