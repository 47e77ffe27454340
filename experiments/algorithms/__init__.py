"""Offline algorithms of the papers, which the service does not run: the experiments and the tests compare with them."""
