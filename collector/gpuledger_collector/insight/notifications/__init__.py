"""Who is notified of what, when, and in which messages: pure rules."""
