"""Ways of telling people; each change of state is told once."""
