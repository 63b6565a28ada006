"""Messages to people: the outbox, notification rules, and which finding was notified when."""
